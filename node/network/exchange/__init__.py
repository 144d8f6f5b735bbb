"""Transfer of bytes between peers: blobs, chunks of larger files, and relays for updates."""
