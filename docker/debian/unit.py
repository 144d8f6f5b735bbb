"""Print the systemd unit of the Debian package: that of `distro-node service`, under a fixed user."""

from __future__ import annotations

from distro_node.node.service.units import Service, systemd_unit


def unit() -> str:
    """Return the unit. `DynamicUser=yes` would make a user at each start and move the data; a package
    has a user of its own."""
    service = Service(
        name="distro-node",
        command="bootstrap",
        command_line=(
            *("/usr/bin/distro-node", "--config", "/etc/distro-node/bootstrap.toml"),
            "bootstrap",
        ),
        system=True,
    )
    mark, _, text = systemd_unit(service).decode().partition("\n")
    # The mark says that `distro-node service` may overwrite the file.
    assert mark.startswith("# Made by")
    return text.replace("DynamicUser=yes\n", "User=distro-node\nGroup=distro-node\n")


if __name__ == "__main__":
    print(unit(), end="")
