"""What `distro-node doctor` looks at: whether this computer can take part, and what is in the way."""
