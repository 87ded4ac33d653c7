"""MCP as a server speaks it, whatever carries the messages: `/mcp` over HTTP and over WebSocket."""
