"""`worldline relay`: lines of JSON from stdin, or signed webhooks, into a world's inbox."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from worldline.base import errors, grammar, limits, private_files
from worldline.features.relay import inlet, json_lines, webhook, webhook_signature
from worldline.terminal import command_session, output, shutdown
from worldline.terminal.command_session import CommandSession

PROGRESS_LINES = 1_000


@command_session.command("relay", app=True)
@click.argument("world")
@click.option("--inbox", metavar="NAME", help="Put values into this inbox.")
@click.option("--event", metavar="NAME", help="Values are the fields of this event.")
@click.option("--id", "field", metavar="FIELD", help="Lines: take each one's id from this field.")
@click.option("--ids", "name", metavar="NAME", help="Lines: give the n-th one the id NAME-n.")
@click.option("--listen", metavar="HOST:PORT", help="Take webhooks here, and no lines.")
@click.option(
    "--secret-file",
    "secret_files",
    type=click.Path(dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Webhooks: a secret, for its owner alone (chmod 600). Several, while one is exchanged for another.",
)
@click.option("--path", default="/", show_default=True, metavar="PATH", help="Webhooks: where they are posted to.")
@click.option("--id-header", default="Idempotency-Key", show_default=True, metavar="NAME", help="Webhooks: the id.")
@click.option(
    "--timestamp-header",
    default="X-Timestamp",
    show_default=True,
    metavar="NAME",
    help="Webhooks: Unix seconds.",
)
@click.option(
    "--signature-header",
    default="X-Signature-256",
    show_default=True,
    metavar="NAME",
    help="Webhooks: sha256= and an HMAC.",
)
@click.option(
    "--tolerance",
    type=click.IntRange(1, limits.WEBHOOK_TOLERANCE_SECONDS_MAX),
    metavar="SECONDS",
    default=limits.WEBHOOK_TOLERANCE_SECONDS,
    show_default=True,
    help="Webhooks: how far timestamps may be off.",
)
@click.option("--body-only", is_flag=True, help="Webhooks: the body alone is signed; its digest is the id.")
@click.option("--timestamp-field", metavar="FIELD", help="With --body-only: where the body has its timestamp.")
@click.option(
    "--bytes-max",
    type=click.IntRange(1, limits.RELAY_BYTES_MAX),
    default=limits.RELAY_BYTES_MAX,
    show_default=True,
    metavar="N",
    help="Webhooks: the size of a body.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0.01),
    default=100.0,
    show_default=True,
    metavar="N",
    help="Webhooks: requests a second, of each secret.",
)
@click.option(
    "--address-rate",
    type=click.FloatRange(min=0.01),
    default=200.0,
    show_default=True,
    metavar="N",
    help="Webhooks: requests a second of each address, before its signature is checked.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Webhooks: a proxy in front, whose X-Forwarded-For names the sender.",
)
async def relay(
    desk: CommandSession,
    *,
    world: str,
    inbox: str | None,
    event: str | None,
    field: str | None,
    name: str | None,
    listen: str | None,
    **webhooks: Any,
) -> int:
    """Put lines of JSON from stdin, or webhooks, into an inbox.

    `worldline relay alice --inbox orders --ids import-7 < orders.jsonl`
    """
    if (inbox is None) == (event is None):
        raise errors.BadInput("say where values go: --inbox NAME, or --event NAME")
    if listen is None:
        if field is not None and name is not None:
            raise errors.BadInput("an id comes from --id FIELD or from --ids NAME, not from both")
        return await _lines(desk, world, inbox, event, json_lines.LineIdSource(name, field))
    if field is not None or name is not None:
        raise errors.BadInput("the id of a webhook comes from --id-header")
    settings = _settings(**webhooks)
    return await _webhook(desk, world, settings, inbox=inbox, event=event, listen=listen)


async def _lines(
    desk: CommandSession, world: str, inbox: str | None, event: str | None, ids: json_lines.LineIdSource
) -> int:
    ending = shutdown.Shutdown(lambda *_: None, as_json=desk.out.as_json)
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        program = universe.programs.get((await found.describe()).meta.program)
        goes = inlet.Inlet(found, inbox, event, program)
        source = json_lines.Lines(
            sys.stdin.buffer,
            goes,
            ids,
            tell=lambda count: _tell(desk, count),
            complain=lambda number, why: output.write_error(
                "bad_input", f"line {number}: {why}", "", as_json=desk.out.as_json
            ),
        )
        with ending.signals():
            count = await source.run(ending.asked)
    said = f"in the inbox of {world}: {count.sent} of {grammar.count(count.lines, 'line')}"
    if count.repeated:
        said += f", {count.repeated} of them from before"
    if count.interrupted:
        said += "; interrupted: the lines behind them were not sent"
    desk.out.one(
        {
            "world": world,
            "lines": count.lines,
            "sent": count.sent,
            "repeated": count.repeated,
            "refused": count.refused,
            "interrupted": count.interrupted,
        },
        [said],
    )
    if count.interrupted:
        return shutdown.leave(output.INTERRUPTED)  # a thread may still wait for the next line
    return output.NEGATIVE if count.refused else 0


def _tell(desk: CommandSession, count: json_lines.Count) -> None:
    if count.lines % PROGRESS_LINES == 0:
        desk.out.note(f"{grammar.count(count.lines, 'line')}, {count.sent} sent, {count.refused} refused")


def _settings(
    *,
    secret_files: tuple[str, ...],
    path: str,
    id_header: str,
    timestamp_header: str,
    signature_header: str,
    tolerance: int,
    body_only: bool,
    timestamp_field: str | None,
    bytes_max: int,
    rate: float,
    address_rate: float,
    proxies: tuple[str, ...],
) -> webhook.WebhookSettings:
    if not secret_files:
        raise errors.BadInput("webhooks are signed: name the file that holds the secret with --secret-file")
    if timestamp_field and not body_only:
        raise errors.BadInput("--timestamp-field goes with --body-only; else the timestamp is in --timestamp-header")
    return webhook.WebhookSettings(
        secrets=[_secret(each) for each in secret_files],
        path=path,
        headers=webhook_signature.Headers(id_header.lower(), timestamp_header.lower(), signature_header.lower()),
        form=webhook_signature.Form.BODY if body_only else webhook_signature.Form.SIGNED_ID,
        tolerance_seconds=tolerance,
        time_field=timestamp_field or "",
        bytes_max=bytes_max,
        rate=rate,
        address_rate=address_rate,
        proxies=proxies,
    )


def _secret(file: str) -> bytes:
    """A process that knows it can sign: its file must be for its owner, as those of other keys are."""
    data = private_files.read_secret(Path(file), bytes_max=limits.KEY_FILE_BYTES_MAX + 1)
    # One byte more than this was read, so that a secret which was cut is not used as a whole one.
    if len(data) > limits.KEY_FILE_BYTES_MAX:
        raise errors.TooLarge(f"the secret in {file}", size=len(data), limit=limits.KEY_FILE_BYTES_MAX)
    return webhook_signature.read_secret(data, file)


async def _webhook(
    desk: CommandSession,
    world: str,
    settings: webhook.WebhookSettings,
    *,
    inbox: str | None,
    event: str | None,
    listen: str,
) -> int:
    host, _, port = listen.rpartition(":")
    # `isdecimal` alone accepts digits of other scripts.
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise errors.BadInput(f"--listen takes HOST:PORT, such as 127.0.0.1:8080, not {listen!r}")
    ending = shutdown.Shutdown(lambda what, detail: desk.out.note(f"[{what}] {detail}"), as_json=desk.out.as_json)
    async with desk.open() as universe:
        found = await desk.world(universe, world)
        program = universe.programs.get((await found.describe()).meta.program)
        counted = {"taken": 0, "repeated": 0, "refused": 0}

        def told(answer: webhook.WebhookAnswer) -> None:
            counted[{webhook.TAKEN: "taken", webhook.TAKEN_BEFORE: "repeated"}.get(answer.status, "refused")] += 1

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
    said = ", ".join(f"{number} {what}" for what, number in counted.items())
    desk.out.one({"stopped": "relay", **counted}, [said])
    return 0
