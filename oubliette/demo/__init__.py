"""`oubliette demo`: the whole relay on one machine, each hop shown, and the scripted agent that it runs."""
