"""The stdio MCP server beside an agent: what the agent calls goes to the daemon over one unix socket (WIRE section 1).

Loads the standard library, trio and the standard-library part of `oubliette.protocol`, nothing else: it runs in other
people's containers, and an agent waits for its start.
"""
