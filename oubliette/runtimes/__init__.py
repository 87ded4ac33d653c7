"""Where agents run: as a process of this host, in bubblewrap, or in a container of podman or docker."""
