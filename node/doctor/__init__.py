"""The examinations of `distro-node doctor`: whether this computer can take part, and what prevents
it."""
