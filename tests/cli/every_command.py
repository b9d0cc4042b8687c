"""Every command of the command line, with words to run it with: for tests of what none of them may write.

Commands are found in click. `WORDS` has the words of those that need some; a command that is not in it is run with
words made of its parameters, so a new one joins by itself. Words in braces stand for things of the test's store.
`SERVING` go on until they are stopped, and are processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from worldline import cli

SERVING = {
    "adapter": ["{app}"],
    "dev": ["{app}"],
    "janitor": [],
    "orchestrator": [],
    "relay": ["alice", "--inbox", "in", "--listen", "127.0.0.1:0", "--secret-file", "{secret}"],
    "timer start": [],
    "up": ["{app}"],
    "worker start": ["{app}"],
}
WATCHED = ("adapter", "janitor", "orchestrator", "timer start", "up", "worker start")  # have --metrics and --log

SOON = ["--timeout", "0.05"]
# In the order in which they are run: those that look, those that change a world, those that end one.
WORDS: dict[str, list[list[str]]] = {
    "list": [[], ["-q"]],
    "show": [["alice"], ["{hostile}"]],
    "why": [["alice"], ["bob"], ["carol"]],
    "state": [["alice"], ["alice", "Account", "bob"], ["alice", "Acount"], ["shop"]],
    "journal": [["alice"], ["alice", "--export", "{folder}/journal.jsonl"]],
    "log": [["alice"]],
    "follow": [["alice", "--above", "0", "--count", "2", *SOON], ["alice", "--above", "999", *SOON]],
    "snapshots": [["alice"]],
    "diff": [["alice@2", "alice"], ["alice", "bob"]],
    "trace": [["shop"], ["alice"]],
    "runs list": [["alice"]],
    "runs show": [["alice", "bad"], ["alice", "order"], ["alice", "{hostile}"]],
    "effect list": [[], ["alice"]],
    "effect show": [["{effect}"], ["{parked}"], ["{hostile}"]],
    "timer list": [[], ["alice"]],
    "schedule list": [[], ["alice"]],
    "dead list": [[], ["alice"]],
    "tree": [[], ["alice"]],
    "ref list": [[]],
    "worker list": [[]],
    "worker show": [["{hostile}"]],
    "universe list": [[], ["--count"]],
    "universe allowed": [[], ["--log"]],
    "policy list": [[], ["--log"]],
    "policy check": [["alice", "--effect", "{hostile}"]],
    "universe settings": [[], ["pressure.inbox_items_max=500"]],
    "universe quota": [["--worlds", "100"], ["--count"], ["--log"]],
    "explain": [["shop", "Order.pay", "--key", "o-1"], ["alice", "{hostile}"]],
    "check": [["{app}"], ["{folder}/{hostile}.py"]],
    "domain show": [["{domain}"], ["{document}"]],
    "domain validate": [["{document}"], ["{hostile}"]],
    "domain export": [["{domain}", "--mermaid"], ["{domain}", "--openapi"]],
    "keys": [[]],
    "new-key": [["{folder}/new.json"], ["{folder}/new.json", "--id", "second"]],
    "settings": [[], ["--set", "{hostile}=1"], ["{hostile}"], ["--changed", "--set", "worker.labels={hostile}=1"]],
    "init": [["{folder}/project"]],
    "simulate": [["{hostile}"]],
    "bench": [["--only", "{hostile}", "--seconds", "0.01"]],
    "anchor": [
        ["--new-key", "{folder}/anchor.key"],
        ["--all", "--sign", "{folder}/anchor.key", "--out", "{folder}/anchors"],
        ["alice"],
        ["{hostile}"],
    ],
    "verify": [
        ["alice"],
        ["--all"],
        ["--all", "--since", "{folder}/anchors"],
        ["alice", "--since", "{folder}/anchors"],
        ["alice", "--since", "{hostile}"],
        ["alice", "--since", "{folder}/anchors", "--key", "{hostile}"],
    ],
    "replay": [["alice", "--prove", "--app", "{app}"]],
    "prove": [
        ["alice", "2"],
        ["alice", "2", "--out", "{folder}/entry.proof"],
        ["alice", "--state", "cell/Account", *SOON],
        ["alice", "--since", "{folder}/anchors"],
    ],
    "doctor": [["--app", "{app}"], ["--repair"]],
    "create": [["dora", "--program", "shop", "--label", "team={hostile}"], ["dora"], ["{hostile}"]],
    "send": [
        ["alice", "Deposited", "account=bob", "cents=1", "--id", "{hostile}"],
        ["alice", "{hostile}", "x=1"],
        ["bob", "Deposited", "--data", '{"account": "{hostile}", "cents": 1}', "--wait", *SOON],
    ],
    "ask": [["alice", "Withdraw", "account=bob", "cents=1", *SOON], ["alice", "{hostile}", *SOON]],
    "run": [["alice", "greet", "name={hostile}", *SOON], ["alice", "{hostile}", *SOON]],
    "act": [["shop", "Order.fill", "cents=5", "--key", "o-1", *SOON], ["shop", "Order.{hostile}", *SOON]],
    "label": [["alice", "note={hostile}"], ["alice"]],
    "fork": [["alice", "what-if", "--at", "3"], ["alice", "{hostile}"]],
    "revert": [["alice", "--to", "3", "--yes", *SOON]],
    "ref set": [["alias", "alice", "--yes"]],
    "ref rename": [["bob", "robert", "--yes"]],
    "ref delete": [["alias", "--yes"]],
    "pause": [["alice"]],
    "resume": [["alice"], ["--all", "--yes"]],
    "lease assign": [["alice", "{hostile}"], ["alice", "{hostile}", "--priority", "0"]],
    "lease unassign": [["alice"]],
    "lease revoke": [["alice"], ["alice", "--epoch", "1"]],
    "worker drain": [["{hostile}"]],
    "worker undrain": [["{hostile}"]],
    "upgrade": [["alice", "--app", "{app}"], ["alice", "--shadow", "--app", "{app}"]],
    "effect park": [["{effect}"]],
    "effect retry": [["{parked}"]],
    "effect answer": [["{parked}", '"{hostile}"', *SOON]],
    "timer cancel": [["{timer}", "--yes", "--reason", "{hostile}", *SOON]],
    "schedule trigger": [["alice", "{hostile}", *SOON]],
    "schedule cancel": [["alice", "{hostile}", "--yes", *SOON]],
    "runs cancel": [["alice", "nap", "--yes", "--reason", "{hostile}", *SOON]],
    "runs retry": [["alice", "bad", *SOON]],
    "runs reset": [["alice", "bad", "--to", "1", "--yes", *SOON]],
    "runs answer": [["alice", "order", "1", '"{hostile}"', *SOON]],
    "runs terminate": [["alice", "order", "--yes", "--reason", "{hostile}", *SOON]],
    "abandon": [["shop", "Order", "{hostile}", "--yes", "--key", "o-1", *SOON]],
    "patch": [["shop", "Order", "cents=1", "--key", "o-1", *SOON]],
    "dead retry": [["alice", "--all"]],
    "dead drop": [["alice", "--all", "--yes"]],
    "erase": [["alice", "--payload", "{hostile}", "--yes"], ["alice", "--dry-run"]],
    "policy deny": [["send", "Never", "--world", "nobody"]],
    "policy only": [["effect", "x*", "--world", "nobody"]],
    "policy drop": [["1"], ["99"]],
    "universe create": [["tenant"], ["{hostile}"]],
    "universe allow": [["tenant", "--event", "Deposited"]],
    "universe deny": [["tenant", "--event", "Deposited"]],
    "universe delete": [["tenant", "--yes"]],
    "compact": [["alice"], ["alice", "--dry-run"]],
    "gc": [["--dry-run"], ["--now"]],
    "export": [["alice", "{folder}/alice.world"]],
    "import": [["{folder}/alice.world", "--as", "copy"], ["{folder}/journal.jsonl"]],
    "backup create": [["{folder}/backups"]],
    "backup list": [["{folder}/backups"]],
    "backup verify": [["{folder}/backups"]],
    "restore": [["{folder}/backups", "{other}"]],
    "rotate-keys": [[]],
    "archive": [["bob"]],
    "delete": [["robert", "--yes"], ["{hostile}", "--yes"]],
}


def leaves(command: click.Command = cli.group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command, by its whole name."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name, inner in command.commands.items():
        yield from leaves(inner, (*path, name))


def cases(things: Mapping[str, str]) -> Iterator[list[str]]:
    """The words of every command that ends by itself, in an order in which they find what they need; and the first of
    each once more, with JSON as the answer.
    """
    known = dict(leaves())
    assert not [name for name in (*WORDS, *SERVING) if name not in known], "commands that are gone"
    fresh = {name: [_words(each)] for name, each in known.items() if name not in WORDS and name not in SERVING}
    for name, several in {**WORDS, **fresh}.items():
        for words in (*several, [*several[0], "--json"]):
            yield [*name.split(), *(_filled(word, things) for word in words)]


def serving(things: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The words of every command that goes on until it is stopped."""
    for name, words in SERVING.items():
        yield name, [*name.split(), *(_filled(word, things) for word in words)]


def _words(command: click.Command) -> list[str]:
    """Words for a command that this file does not know: what its parameters ask for, or nearly."""
    required = [each for each in command.params if isinstance(each, click.Argument) and each.required]
    words = ["alice" if "world" in str(each.name) else "{folder}/x" for each in required]
    flags = [each.opts[0] for each in command.params]
    return [*words, *(["--yes"] if "--yes" in flags else []), *(SOON if "--timeout" in flags else [])]


def _filled(word: str, things: Mapping[str, str]) -> str:
    for name, value in things.items():
        word = word.replace(f"{{{name}}}", value)
    return word
