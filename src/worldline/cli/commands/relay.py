"""`worldline relay`: lines of JSON from stdin, or signed webhooks, into a world's inbox."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from worldline.base import errors, limits
from worldline.cli import common, output, shutdown
from worldline.cli.common import Desk
from worldline.cli.relay import inlet, lines, webhook

PROGRESS_LINES = 1_000


@common.command("relay", app=True)
@click.argument("world")
@click.option("--inbox", metavar="NAME", help="Put values into this inbox.")
@click.option("--event", metavar="NAME", help="Values are the fields of this event.")
@click.option("--id", "field", metavar="FIELD", help="Lines: take each one's id from this field.")
@click.option("--ids", "name", metavar="NAME", help="Lines: give the n-th one the id NAME-n.")
@click.option("--listen", metavar="HOST:PORT", help="Take webhooks here, and no lines.")
@click.option("--secret-file", type=click.Path(dir_okay=False), metavar="FILE", help="Webhooks: the secret.")
@click.option("--path", default="/", show_default=True, metavar="PATH", help="Webhooks: where they are posted to.")
@click.option("--id-header", default="Idempotency-Key", show_default=True, metavar="NAME", help="Webhooks: the id.")
@click.option(
    "--signature-header", default="X-Signature-256", show_default=True, metavar="NAME",
    help="Webhooks: sha256= and an HMAC.",
)  # fmt: skip
@click.option("--body-only", is_flag=True, help="Webhooks: the signature is over the body, without the id.")
@click.option(
    "--bytes-max", type=click.IntRange(1, limits.RELAY_BYTES_MAX), default=limits.RELAY_BYTES_MAX, show_default=True,
    metavar="N", help="Webhooks: the size of a body.",
)  # fmt: skip
@click.option(
    "--rate", type=click.FloatRange(min=0.01), default=100.0, show_default=True, metavar="N",
    help="Webhooks: requests a second.",
)  # fmt: skip
async def relay(
    desk: Desk, *, world: str, inbox: str | None, event: str | None, field: str | None, name: str | None,
    listen: str | None, secret_file: str | None, path: str, id_header: str, signature_header: str, body_only: bool,
    bytes_max: int, rate: float,
) -> int:  # fmt: skip
    """Put lines of JSON from stdin, or webhooks, into an inbox.

    `worldline relay alice --inbox orders --ids import-7 < orders.jsonl`
    """
    if (inbox is None) == (event is None):
        raise errors.BadInput("say where values go: --inbox NAME, or --event NAME")
    if listen is None:
        if field is not None and name is not None:
            raise errors.BadInput("an id comes from --id FIELD or from --ids NAME, not from both")
        return await _lines(desk, world, inbox, event, lines.Ids(name, field))
    if field is not None or name is not None:
        raise errors.BadInput("the id of a webhook comes from --id-header")
    settings = webhook.Settings(
        _secret(secret_file), path, id_header.lower(), signature_header.lower(), not body_only, bytes_max, rate
    )
    return await _webhook(desk, world, settings, inbox=inbox, event=event, listen=listen)


async def _lines(desk: Desk, world: str, inbox: str | None, event: str | None, ids: lines.Ids) -> int:
    ending = shutdown.Shutdown(lambda *_: None, as_json=desk.out.as_json)
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        program = universe.programs.get((await found.describe()).meta.program)
        goes = inlet.Inlet(found, inbox, event, program)
        source = lines.Lines(
            sys.stdin.buffer, goes, ids, tell=lambda count: _tell(desk, count),
            complain=lambda number, why: output.write_error(
                "bad_input", f"line {number}: {why}", "", as_json=desk.out.as_json
            ),
        )  # fmt: skip
        with ending.signals():
            count = await source.run(ending.asked)
    said = f"{count.sent} of {count.lines} lines are in the inbox of {world}"
    if count.repeated:
        said += f", {count.repeated} of them from before"
    if count.interrupted:
        said += "; interrupted: the lines behind them were not sent"
    desk.out.one(
        {
            "world": world, "lines": count.lines, "sent": count.sent, "repeated": count.repeated,
            "refused": count.refused, "interrupted": count.interrupted,
        },
        [said],
    )  # fmt: skip
    if count.interrupted:
        return shutdown.leave(output.INTERRUPTED)  # a thread may still wait for the next line
    return output.NEGATIVE if count.refused else 0


def _tell(desk: Desk, count: lines.Count) -> None:
    if count.lines % PROGRESS_LINES == 0:
        desk.out.note(f"{count.lines} lines, {count.sent} sent, {count.refused} refused")


def _secret(file: str | None) -> bytes:
    if file is None:
        raise errors.BadInput("webhooks are signed: name the file that holds the secret with --secret-file")
    try:
        return Path(file).read_bytes().strip()
    except OSError as error:
        raise errors.BadInput(f"{file} cannot be read: {error.strerror}") from error


async def _webhook(
    desk: Desk, world: str, settings: webhook.Settings, *, inbox: str | None, event: str | None, listen: str
) -> int:
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise errors.BadInput(f"--listen takes HOST:PORT, such as 127.0.0.1:8080, not {listen!r}")
    ending = shutdown.Shutdown(lambda what, detail: desk.out.note(f"[{what}] {detail}"), as_json=desk.out.as_json)
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        program = universe.programs.get((await found.describe()).meta.program)
        counted = {"taken": 0, "refused": 0}

        def told(answer: webhook.Answer) -> None:
            counted["taken" if answer.status == webhook.TAKEN else "refused"] += 1

        server = webhook.Webhook(inlet.Inlet(found, inbox, event, program), settings, universe.store.env, told=told)
        with ending.signals():
            try:
                number = await server.start(host, int(port))
            except OSError as error:
                raise errors.BadInput(f"cannot listen at {listen}: {error.strerror}") from error
            where = f"http://{host}:{number}{settings.path}"
            desk.out.one(
                {"ready": "relay", "url": where}, [f"webhooks for {world} are taken at {where}; Ctrl-C ends it"]
            )
            await ending.asked.wait()
            await server.close()
    desk.out.one({"stopped": "relay", **counted}, [f"{counted['taken']} taken, {counted['refused']} refused"])
    return 0


COMMANDS: list[click.Command] = [relay]
