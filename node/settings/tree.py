"""The settings of whole programs: trees of the components' settings.

A command gets a tree, built from its options. A tree with the same setting as another tree, but with
another default or help, declares it with `redeclared`; `fixed` declares a component without options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import Invite
from ..errors import ExitCode, UserError
from .components import (
    ConsoleSettings,
    DashboardSettings,
    DiskSettings,
    EnergySettings,
    EvaluationSettings,
    LineSettings,
    LogSettings,
    PeeringSettings,
    PrivacySettings,
    ReachSettings,
    RelaySettings,
    Split,
    TrainerSettings,
)
from .setting import Group, fixed, redeclared, setting
from .values import (
    DEFAULT_METRICS_ADDRESS,
    absolute_path,
    address_text,
    default_data_dir,
    parse_display_name,
    parse_join_target,
    parse_metrics_address,
    parse_target,
)

PASSPHRASE_VARIABLE = "DISTRO_NODE_PASSPHRASE"


@dataclass(frozen=True, kw_only=True)
class DaemonSettings:
    """All settings of a node in a swarm (`join`)."""

    invite: Invite = setting(
        name="target",
        metavar="TARGET",
        parse=parse_target,
        argument=True,
        help="An invite link (in quotes) or a swarm-id.",
    )
    peering: PeeringSettings = PeeringSettings()
    trainer: TrainerSettings = TrainerSettings()
    privacy: PrivacySettings = PrivacySettings()
    stateless: bool = setting(
        False,
        opposite="stateful",
        group=Group.EXPERT,
        help="Keep no momentum from one update to the next, for a node that stays for one round.",
    )
    evaluation: EvaluationSettings = EvaluationSettings()
    line: LineSettings = LineSettings()
    disk: DiskSettings = DiskSettings()
    relay: RelaySettings = RelaySettings()
    energy: EnergySettings = EnergySettings()
    reach: ReachSettings = ReachSettings()
    metrics_address: tuple[str, int] | None = setting(
        address_text(DEFAULT_METRICS_ADDRESS),
        name="metrics-addr",
        metavar="HOST:PORT",
        parse=parse_metrics_address,
        group=Group.DASHBOARD,
        help="Address of this node's Prometheus metrics; off: no metrics.",
    )
    dashboard: DashboardSettings = DashboardSettings()
    display_name: str | None = setting(
        None,
        metavar="NAME",
        parse=parse_display_name,
        group=Group.DASHBOARD,
        help="A name for you on pages of the swarm; anybody can take any name.",
    )
    until_round: int | None = setting(
        None,
        metavar="ROUND",
        low=1,
        group=Group.EXPERT,
        help="Leave the swarm after this round.",
    )
    serve_result: bool = setting(
        False,
        group=Group.EXPERT,
        help="When the run is over, keep running and serve its result to any peer.",
    )
    """With this, a member keeps running after the end of the run, and an observer keeps the result
    (`seeding`)."""
    data_dir: Path = setting(
        default_factory=default_data_dir,
        metavar="DIRECTORY",
        value_type=Path,
        parse=absolute_path,
        group=Group.COMMON,
        help="Directory for this node's identity and swarms. [default: the system's directory for "
        "application data]",
    )
    passphrase_file: Path | None = setting(
        None,
        metavar="FILE",
        group=Group.PRIVACY,
        help="A file whose first line is the passphrase of this node's key. The environment "
        f"variable {PASSPHRASE_VARIABLE} may hold the passphrase instead.",
    )
    passphrase: str | None = field(default=None, repr=False)
    """The passphrase itself: from the file, the variable or the terminal."""
    console: ConsoleSettings = ConsoleSettings()

    @property
    def swarm(self) -> SwarmId:
        """The swarm-id."""
        return self.invite.swarm

    @property
    def full_invite(self) -> Invite:
        """The invite link, with the bootstrap peers from options added after its own, without
        duplicates."""
        known = dict.fromkeys((*self.invite.bootstrap, *self.peering.bootstrap))
        return replace(self.invite, bootstrap=tuple(known))

    def __repr__(self) -> str:
        # A repr ends up in logs. Subclasses have the generated one, which leaves out the passphrase.
        return f"{type(self).__name__}(data_dir={str(self.data_dir)!r})"


@dataclass(frozen=True, kw_only=True)
class JoinSettings(DaemonSettings):
    """The settings of a node in a swarm as its user gives them (`join`): the swarm may be a name."""

    invite: Invite = redeclared(
        DaemonSettings,
        "invite",
        parse=parse_join_target,
        help="An invite link (in quotes), a swarm-id, or the name of a public swarm.",
    )


@dataclass(frozen=True, kw_only=True)
class PublicDashboardSettings(DashboardSettings):
    """How the dashboard page of a swarm is served: anyone who reaches it may read it."""

    address: tuple[str, int] | None = redeclared(
        DashboardSettings,
        "address",
        default="127.0.0.1:9466",
        help="Address of the swarm's page. Anyone who can reach it may read it.",
    )
    public: bool = True


@dataclass(frozen=True, kw_only=True)
class ObserverSettings(DaemonSettings):
    """The settings of an observer: those of a node that does not train (`observe`)."""

    trainer: TrainerSettings = fixed(TrainerSettings())
    privacy: PrivacySettings = fixed(PrivacySettings())
    stateless: bool = False
    evaluation: EvaluationSettings = fixed(EvaluationSettings())
    disk: DiskSettings = fixed(DiskSettings())
    relay: RelaySettings = fixed(RelaySettings())
    energy: EnergySettings = fixed(EnergySettings())
    reach: ReachSettings = fixed(ReachSettings(upnp=False))
    metrics_address: tuple[str, int] | None = redeclared(
        DaemonSettings,
        "metrics_address",
        default="off",
        help="Address of this peer's Prometheus metrics; off: no metrics.",
    )
    dashboard: PublicDashboardSettings = PublicDashboardSettings()
    display_name: str | None = None
    until_round: int | None = None
    serve_result: bool = redeclared(
        DaemonSettings,
        "serve_result",
        help="Keep the run's result (the newest snapshot of the parameters, and the data to "
        "evaluate it), and serve it to any peer, even when no member is left. Needs disk space "
        "for three snapshots.",
    )


@dataclass(frozen=True, kw_only=True)
class HostedDashboardSettings(PublicDashboardSettings):
    """How the dashboard page of the swarm that a bootstrap peer observes is served."""

    address: tuple[str, int] | None = redeclared(
        PublicDashboardSettings,
        "address",
        help="Address of the page of the swarm of --observe. Anyone who can reach it may read "
        "it; it accepts no commands.",
    )


@dataclass(frozen=True, kw_only=True)
class BootstrapRelaySettings(RelaySettings):
    """Whether a bootstrap peer relays updates: by default it does, because its connection is fast."""

    enabled: bool = redeclared(RelaySettings, "enabled", default=True)


@dataclass(frozen=True, kw_only=True)
class BootstrapOptions:
    """The settings of a bootstrap peer that its user chooses (`bootstrap`)."""

    line: LineSettings = LineSettings()
    relay: BootstrapRelaySettings = BootstrapRelaySettings()
    metrics_address: tuple[str, int] | None = redeclared(ObserverSettings, "metrics_address")
    observe: Invite | None = setting(
        None,
        metavar="LINK",
        parse=parse_target,
        help="Follow this swarm and serve its page, as `distro-node observe` does: an invite link "
        "(in quotes) or a swarm-id.",
    )
    serve_result: bool = redeclared(ObserverSettings, "serve_result")
    list_swarms: bool = setting(
        False,
        help="Keep a list of public swarms, which their members publish, for `distro-node swarms`.",
    )
    dashboard: HostedDashboardSettings = HostedDashboardSettings()
    data_dir: Path = redeclared(DaemonSettings, "data_dir")
    passphrase_file: Path | None = redeclared(DaemonSettings, "passphrase_file")
    console: LogSettings = LogSettings()


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """The settings of a node that `fit` uses."""

    bootstrap: tuple[str, ...] = redeclared(PeeringSettings, "bootstrap")
    device: str = redeclared(TrainerSettings, "device")
    split: Split = redeclared(TrainerSettings, "split")
    memory: int | None = redeclared(TrainerSettings, "memory")
    micro_batch: int | None = redeclared(TrainerSettings, "micro_batch")
    data_dir: Path = redeclared(DaemonSettings, "data_dir")


@dataclass(frozen=True, kw_only=True)
class StateSelector:
    """Selects a state of the model: the one after `round`, the `best`, or by default the newest.

    Raises `UserError` (`USAGE`) if two are named.
    """

    round: int | None = setting(
        None,
        metavar="ROUND",
        low=0,
        help="Use the model's state after this round, if this node still has it. [default: the newest]",
    )
    best: bool = setting(
        False,
        opposite="newest",
        help="Use the stored state with the lowest held-out loss, or the newest.",
    )

    def __post_init__(self) -> None:
        if self.round is not None and self.best:
            raise UserError(
                ExitCode.USAGE, "--round and --best name two states", "give one of them, or neither"
            )


NEWEST = StateSelector()
