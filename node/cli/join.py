"""`distro-node join`: take part in a swarm."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ...protocol.wire.swarm_id import swarm_text
from ..settings import (
    Compile,
    DaemonSettings,
    Split,
    parse_devices,
    parse_launched_device,
    parse_metrics_address,
    parse_mirror,
    parse_prompt,
    parse_rate,
    parse_size,
)
from ..telemetry.logs import LogFormat, LogLevel
from ..training.torchrun import become_rank, end_ranks, launch_of
from ..util.schedule import parse_hours
from .energy import (
    Currency,
    PauseAbove,
    PauseBelow,
    PauseEvery,
    PauseField,
    PauseWhenOption,
    Polite,
    PowerLimit,
    Price,
    ResumeAbove,
    ResumeBelow,
    energy_settings,
)
from .options import (
    Announce,
    Bootstrap,
    DashboardCertificate,
    DashboardKey,
    DashboardPlain,
    DataDirectory,
    Listen,
    LogFormatOption,
    LogLevelOption,
    MaxDisk,
    MaxDownload,
    MaxUpload,
    Mdns,
    Memory,
    MicroBatch,
    Mirror,
    PassphraseFile,
    RelayMemory,
    RelayUpdates,
    Screen,
    SplitOption,
    Wait,
    dashboard_settings,
    data_directory,
    find_passphrase,
    introducers,
    multiaddrs,
    parse_target,
    prepare_to_run,
    relay_limits,
)
from .own_data import (
    Clip,
    Delta,
    Epsilon,
    OwnFiles,
    Stateless,
    privacy_settings,
    private_files,
)


def join(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An invite link (in quotes) or a swarm-id.")
    ],
    bootstrap: Bootstrap = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="What to train on: auto, cpu, cuda, cuda:1 (the second GPU) or mps; cuda:0,cuda:1 or "
            "all are several as one member.",
        ),
    ] = "auto",
    split: SplitOption = Split.AUTO,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            max=4096,
            help="CPU threads to train with. [default: as many as there are cores]",
        ),
    ] = None,
    micro_batch: MicroBatch = None,
    memory: Memory = None,
    compile: Annotated[
        Compile,
        typer.Option(
            "--compile",
            help="Compile the model's layers when the trainer starts, which takes a minute or two, if "
            "they get faster by it; auto tries that on a GPU only.",
        ),
    ] = Compile.AUTO,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox/--no-sandbox",
            help="Keep the trainer process from the network and from files that are not its own.",
        ),
    ] = True,
    data: OwnFiles = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    clip: Clip = 1.0,
    stateless: Stateless = False,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            "--evaluate-every",
            metavar="ROUNDS",
            min=1,
            help="Rounds between measurements of the loss on held-out text. [default: 10]",
        ),
    ] = None,
    sample_prompt: Annotated[
        str | None,
        typer.Option(
            "--sample-prompt",
            metavar="TEXT",
            help="Let the model go on from this beginning after each of these measurements, and show on "
            "the page what it writes. [default: it writes nothing]",
        ),
    ] = None,
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    max_disk: MaxDisk = None,
    mirror: Mirror = None,
    relay_updates: RelayUpdates = False,
    relay_memory: RelayMemory = 512,
    active: Annotated[
        str | None,
        typer.Option(
            "--active",
            metavar="HOURS",
            help="When this node works, such as 22:00-07:00, or several times between commas; "
            "otherwise it pauses. [default: always]",
        ),
    ] = None,
    price: Price = None,
    currency: Currency = None,
    power_limit: PowerLimit = None,
    pause_when: PauseWhenOption = None,
    pause_field: PauseField = None,
    pause_above: PauseAbove = None,
    resume_below: ResumeBelow = None,
    pause_below: PauseBelow = None,
    resume_above: ResumeAbove = None,
    pause_every: PauseEvery = 300.0,
    polite: Polite = False,
    listen: Listen = None,
    announce: Announce = None,
    wait: Wait = False,
    upnp: Annotated[
        bool,
        typer.Option(
            "--upnp/--no-upnp",
            help="Ask the router to open a port if others cannot reach this node.",
        ),
    ] = True,
    mdns: Mdns = True,
    metrics_addr: Annotated[
        str,
        typer.Option(
            "--metrics-addr",
            metavar="HOST:PORT",
            help="Where Prometheus finds this node's metrics; off for none.",
        ),
    ] = "127.0.0.1:9464",
    dashboard: Annotated[
        str,
        typer.Option(
            "--dashboard",
            metavar="HOST:PORT",
            help="Where this node's page is served, for your browser; off for nowhere.",
        ),
    ] = "127.0.0.1:9465",
    dashboard_cert: DashboardCertificate = None,
    dashboard_key: DashboardKey = None,
    dashboard_plain: DashboardPlain = False,
    until_round: Annotated[
        int | None,
        typer.Option(
            "--until-round", metavar="ROUND", min=1, help="Leave politely after this round."
        ),
    ] = None,
    serve_result: Annotated[
        bool,
        typer.Option(
            "--serve-result/--no-serve-result",
            help="When the run is over, go on giving what came out to whoever asks for it.",
        ),
    ] = False,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    screen: Screen = True,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Take part in a swarm.

    Fetches the model and trains it with the others until you leave. Ctrl-C leaves politely (the
    others go on without waiting for you), a second Ctrl-C at once. Stop and come back whenever you
    like: the same command goes on where the swarm is. When the run is over the command ends by
    itself, with the exit code 0. For example:

    \b
        distro-node join 'distro:swarm-…?bootstrap=/dns4/boot.example.org/tcp/4001/p2p/12D3KooW…'
    """
    invite = parse_target(target)
    directory = data_directory(data_dir)
    launch = launch_of(os.environ)
    settings = DaemonSettings(
        swarm=invite.swarm,
        data_dir=directory.root,
        bootstrap=introducers(invite, bootstrap),
        ticket=invite.ticket,
        at=invite.at,
        listen=multiaddrs(listen),
        announce=multiaddrs(announce),
        max_upload=parse_rate(max_upload) if max_upload else None,
        max_download=parse_rate(max_download) if max_download else None,
        active=parse_hours(active) if active else None,
        max_disk=parse_size(max_disk) if max_disk else None,
        mirrors=tuple(parse_mirror(place) for place in mirror or ()),
        relay=relay_limits(relay_updates, relay_memory),
        wait=wait,
        upnp=upnp,
        mdns=mdns,
        energy=energy_settings(
            price=price,
            currency=currency,
            power_limit=power_limit,
            pause_when=pause_when,
            pause_field=pause_field,
            above=(pause_above, resume_below),
            below=(pause_below, resume_above),
            every=pause_every,
            polite=polite,
        ),
        device=parse_devices(device) if launch is None else parse_launched_device(device),
        split=split,
        launched=launch is not None,
        metrics_address=parse_metrics_address(metrics_addr),
        dashboard=dashboard_settings(dashboard, dashboard_cert, dashboard_key, dashboard_plain),
        threads=threads,
        micro_batch=micro_batch,
        memory=parse_size(memory) if memory else None,
        compile=compile,
        sandbox=sandbox,
        private_data=private_files(data),
        privacy=privacy_settings(epsilon, delta, clip),
        stateless=stateless,
        evaluate_every=evaluate_every,
        sample_prompt=None if sample_prompt is None else parse_prompt(sample_prompt),
        passphrase=find_passphrase(directory, passphrase_file),
        # Lines for people would spoil a stream of JSON.
        screen=screen and log_format is LogFormat.TEXT,
        until_round=until_round,
        serve_result=serve_result,
    )
    if launch is not None and launch.rank:
        become_rank(directory.root, split, confined=sandbox)
    directory.create()
    # libp2p is imported only now, so that --help is fast and a mistake above is reported at once.
    import trio

    from ..daemon import run_daemon

    prepare_to_run(settings, directory, log_format, log_level)
    is_over = trio.run(run_daemon, settings)
    if launch is not None:
        end_ranks()
    if is_over:
        typer.echo(
            "The run is over, and what came out is on this disk. To write the model to a directory: "
            + directory.command(f"export {swarm_text(invite.swarm)} --to my-model"),
            err=True,
        )
