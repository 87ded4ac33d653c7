"""How an agent is started and heard: profiles (what is run) over runtimes (where it runs)."""
