"""`gristmill monitor`: starts and stops Prometheus and Grafana to monitor all runs of a user."""

from __future__ import annotations

import click

from gristmill.cli.main import FAILED, common_options, echo, json_option, print_json


@click.group("monitor", context_settings={"max_content_width": 100})
def command() -> None:
    """Monitor runs with Prometheus and Grafana.

    \b
    gristmill monitor up
    gristmill run english crawl/ clean/ --metrics-port 0
    gristmill monitor down
    """


@command.command("up")
@click.option(
    "--port",
    "prometheus_port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Prometheus port [default: 9090, or the next free one].",
)
@click.option(
    "--grafana-port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Grafana port [default: 3000, or the next free one].",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Scrape interval.",
)
@json_option
@common_options
def up(prometheus_port: int | None, grafana_port: int | None, interval_s: float, as_json: bool) -> None:
    """Start Prometheus, and Grafana if it is installed.

    They collect metrics from runs started with --metrics-port and from Ray clusters on this machine until you stop
    them, and listen on localhost only. Prometheus keeps its data for 30 days, also while it is stopped. Configuration
    files for your own Prometheus, Grafana or Docker are always written; the last line says where.
    """
    from gristmill.metrics.monitor import Monitor

    found = Monitor().up(prometheus_port=prometheus_port, grafana_port=grafana_port, interval_s=interval_s)
    if as_json:
        print_json(found.record())
    else:
        echo(str(found))


@command.command("down")
@json_option
@common_options
def down(as_json: bool) -> None:
    """Stop the services that 'gristmill monitor up' started."""
    from gristmill.metrics.monitor import Monitor

    stopped = Monitor().down()
    if as_json:
        print_json({"stopped": stopped})
    else:
        echo(f"Stopped: {', '.join(name.capitalize() for name in stopped)}" if stopped else "Nothing was running.")


@command.command("status")
@json_option
@common_options
@click.pass_context
def status(ctx: click.Context, /, as_json: bool) -> None:
    """Show the services and the runs they monitor; exits with 1 if Prometheus is down."""
    from gristmill.metrics.monitor import Monitor

    found = Monitor().status()
    if as_json:
        print_json(found.record())
    else:
        echo(str(found))
    ctx.exit(0 if found.prometheus is not None else FAILED)
