"""The HTTP door: `/mcp` for MCP clients, plain routes for everybody else (WIRE section 4)."""
