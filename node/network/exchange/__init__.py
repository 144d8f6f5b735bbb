"""Moving bytes between peers: blobs, chunks of what is larger, and relays for updates."""
