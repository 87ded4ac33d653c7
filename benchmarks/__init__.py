"""What the daemon costs, measured beside its peers. Each script says at its top what it measures and how to read it.

`python -m benchmarks.relay`: calls per second, latency and CPU per call, beside the official SDK and the floor.
`python -m benchmarks.fanout`: what it costs to deliver one session's events to 100 streams.
`python -m benchmarks.crowd`: latency in a daemon with 2,000 sessions, few of them busy.
`python -m benchmarks.parallel`: what concurrent calls of one session gain.
`python -m benchmarks.idle`: the memory and CPU of idle sessions.
`python -m benchmarks.startup`: how soon the daemon and the client are ready.
`python -m benchmarks.ot`: how quickly the `ot` pack shows a catalogue of 2,000 tools.
`python -m benchmarks.agents`: how soon an agent has its tools, beside starting it by hand, and 50 agents at once.

Everything stays on loopback and unix sockets, lies in temporary folders, and is bounded in count and time.
"""
