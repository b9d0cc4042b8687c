"""Objects in an S3-compatible bucket: `s3://bucket/prefix`. The only file that knows `obstore`.

`put` is S3's own conditional write (`If-None-Match: *`) of the whole body, which carries its sha256 for the server to
check. Each call of `put` marks its object with a token of its own. When the server says that the name is taken, the
token of what is there tells whether an earlier try of the same call did it, its answer lost on the way; and if nothing
is there, the server only refused to decide between two writers (409), and the try is repeated. What is said to be
written is looked for, by its token, before it is believed.

Every try has a time limit that grows with the body, every call a bounded number of tries with backoff; when the process
closes, calls have little time left. Errors that trying again cannot mend are raised at once. No message holds a secret.

Relied on: conditional writes, and listings in name order (so not the directory buckets of S3 Express). Buckets are
never created here. What a finished `put` is worth is the server's promise.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec
import obstore
import obstore.store

from worldline.base import env as envs
from worldline.base import errors, limits, probes
from worldline.store.objects import objects_interface as objects

T = TypeVar("T")
Listing = list[objects.ListedObject]

TOKEN = "upload"  # sent as x-amz-meta-upload  # noqa: S105 - the name of a header, not a secret
PAGE_COUNT = 1_000
RETRY_FIRST_MS = 50
RETRY_MOST_MS = 5_000

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REFUSED = (401, 403)
_REPEATABLE = (408, 409, 429)  # of the client errors, those that mean "later"


class S3Settings(msgspec.Struct, frozen=True):
    """Where the server is and who we are. Without keys, the driver asks the machine for its role's credentials."""

    endpoint: str = ""  # empty: Amazon's own, for the region
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    allow_http: bool = False
    retries: int = 5
    timeout_ms: int = 10_000  # for the server to answer; a body has more time, by its size

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> S3Settings:
        """The settings that the usual AWS_* variables say."""
        return cls(
            endpoint=environ.get("AWS_ENDPOINT_URL_S3", "") or environ.get("AWS_ENDPOINT_URL", ""),
            region=environ.get("AWS_REGION", "") or environ.get("AWS_DEFAULT_REGION", "") or "us-east-1",
            access_key=environ.get("AWS_ACCESS_KEY_ID", ""),
            secret_key=environ.get("AWS_SECRET_ACCESS_KEY", ""),
            session_token=environ.get("AWS_SESSION_TOKEN", ""),
            allow_http=environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true", "yes"},
        )

    def __repr__(self) -> str:
        return f"Settings(endpoint={self.endpoint!r}, region={self.region!r}, access_key={self.access_key!r}, ...)"


class _Undecided(Exception):
    """The name was said to be taken, or written, but nothing is there, or something else."""


async def open(url: str, settings: S3Settings, env: envs.Env, patience: objects.Patience | None = None) -> S3Objects:
    """`StoreMissing` if there is no such bucket; `StoreUnavailable` if it cannot be listed."""
    opened = S3Objects(url, settings, env, patience)
    await opened.list("", count_max=1)
    return opened


class S3Objects:
    def __init__(self, url: str, settings: S3Settings, env: envs.Env, patience: objects.Patience | None = None) -> None:
        self._patience = patience or objects.Patience()
        self._bucket, prefix = _parse(url)
        self._endpoint = settings.endpoint or f"https://s3.{settings.region}.amazonaws.com"
        _check(settings, self._endpoint)
        self._settings = settings
        self._env = env
        self._store: obstore.store.S3Store | None = _connect(self._bucket, prefix, self._endpoint, settings)

    async def put(self, name: str, body: bytes) -> None:
        objects.check_name(name)
        objects.check_body(body)
        # One for all tries of this call: it tells an earlier try of its own from another writer.
        token = self._env.random_bytes(limits.ID_BYTES).hex()
        await self._try(f"put {name}", lambda: self._put_once(name, body, token))

    async def get(self, name: str) -> bytes:
        objects.check_name(name)
        return await self._try(f"get {name}", lambda: self._get_once(name))

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        objects.check_list(prefix, after, count_max)
        return await self._try(f"list {prefix!r}", lambda: self._list_once(prefix, after, count_max))

    async def delete(self, name: str) -> None:
        objects.check_name(name)
        await self._try(f"delete {name}", lambda: self._delete_once(name))

    async def close(self) -> None:
        self._store = None

    async def _put_once(self, name: str, body: bytes, token: str) -> None:
        try:
            async with self._limit(len(body)):
                await obstore.put_async(self._opened, name, body, mode="create", attributes={TOKEN: token})
        except obstore.exceptions.AlreadyExistsError as error:
            found = await self._token(name)
            if found == token:
                probes.hit("s3.own-put-found")
                return
            if found is None:
                probes.hit("s3.put-undecided")
                raise _Undecided(f"{name} is said to exist, but is not there") from error
            raise errors.Exists(f"object {name} exists") from error
        # Believed only when it is found: after this, a record refers to the object for as long as it lives.
        if await self._token(name) != token:
            probes.hit("s3.put-not-there")
            raise _Undecided(f"{name} was said to be written, but is not there")

    async def _token(self, name: str) -> str | None:
        """Who put what is there: the token, "" if it has none, None if there is nothing."""
        try:
            async with self._limit(0):
                found = await obstore.get_async(self._opened, name, options={"head": True})
        except FileNotFoundError:
            return None
        return found.attributes.get(TOKEN, "")

    async def _get_once(self, name: str) -> bytes:
        try:
            async with self._limit(0):
                found = await obstore.get_async(self._opened, name)
        except FileNotFoundError as error:
            # The bucket is gone, not the object: that is no answer to the question.
            if "NoSuchBucket" in str(error):
                raise
            raise errors.NotFound(f"no object {name}") from error
        size = found.meta["size"]
        if size > limits.BLOB_BYTES_MAX:
            raise errors.Corrupt(f"object {name} has {size} bytes, more than can be put")
        # A limit of its own: how long the body may take is known only from the answer, which says its size.
        async with self._limit(size):
            body = bytes(await found.bytes_async())
        if len(body) != size:
            raise errors.Corrupt(f"object {name} has {len(body)} bytes; the server says {size}")
        return body

    async def _delete_once(self, name: str) -> None:
        try:
            async with self._limit(0):
                await obstore.delete_async(self._opened, name)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise

    async def _list_once(self, prefix: str, after: str, count_max: int) -> Listing:
        """The driver lists whole folders, so the rest of the prefix is compared here."""
        taken: Listing = []
        folder = prefix.rpartition("/")[0]
        pages = obstore.list(self._opened, folder or None, offset=after or None, chunk_size=PAGE_COUNT)
        while True:
            async with self._limit(0):
                page = await anext(pages, None)
            if page is None:
                return taken
            for found in page:
                name = found["path"]
                if name.startswith(prefix) and objects.is_name(name):
                    taken.append(objects.ListedObject(name, found["size"], _micros(found["last_modified"])))
                if len(taken) >= count_max or _is_past(name, prefix):
                    return taken

    async def _try(self, what: str, once: Callable[[], Awaitable[T]]) -> T:
        """Call until it answers, the error is final, the tries run out, or the process closes."""
        try:
            async with self._patience.call():
                return await self._tries(what, once)
        except TimeoutError as error:
            probes.hit("s3.call-cut-short")
            raise errors.StoreUnavailable(f"cannot {what} in bucket {self._bucket}: the process is closing") from error

    async def _tries(self, what: str, once: Callable[[], Awaitable[T]]) -> T:
        turn = 0
        while True:
            try:
                return await once()
            except (obstore.exceptions.BaseError, _Undecided, OSError) as error:
                if turn >= self._settings.retries or _is_final(error):
                    raise self._mapped(what, error, tries=turn + 1) from error
            delay_ms = envs.backoff_ms(self._env, turn, first_ms=RETRY_FIRST_MS, most_ms=RETRY_MOST_MS)
            await self._env.sleep(delay_ms / 1000)
            turn += 1

    def _mapped(self, what: str, error: Exception, *, tries: int) -> errors.StoreError:
        where = f"bucket {self._bucket} at {self._endpoint}"
        text = str(error)
        if "NoSuchBucket" in text:
            return errors.StoreMissing(f"cannot {what}: there is no {where}; create it or check its name")
        found = _CODE.search(text)
        code = f" ({found[1]})" if found else ""
        if _status(error) in _REFUSED:
            return errors.StoreUnavailable(
                f"cannot {what}: {where} refused us{code}; "
                f"check the access key, the secret key, the region and the policy of the bucket"
            )
        reason = "no answer in time" if isinstance(error, TimeoutError) else text.partition("\n")[0][:300]
        return errors.StoreUnavailable(f"cannot {what} in {where}, tried {tries} times{code}: {reason}")

    def _limit(self, size: int) -> asyncio.Timeout:
        return asyncio.timeout(self._settings.timeout_ms / 1000 + size / limits.OBJECT_BYTES_PER_SECOND_MIN)

    @property
    def _opened(self) -> obstore.store.S3Store:
        if self._store is None:
            raise errors.StoreUnavailable(f"the bucket {self._bucket} is closed")
        return self._store


def _parse(url: str) -> tuple[str, str]:
    """Bucket and prefix. A URL that is refused is not repeated in full, because it may hold a password."""
    parts = _split(url)
    if parts is None or parts.scheme != "s3" or parts.query or parts.fragment or not _BUCKET.fullmatch(parts.netloc):
        raise errors.BadUrl("not an objects URL; write s3://bucket or s3://bucket/prefix, without keys or options")
    prefix = parts.path.strip("/")
    if prefix and not all(_FOLDER.fullmatch(folder) for folder in prefix.split("/")):
        raise errors.BadUrl(f"not a prefix for objects: {prefix!r}; use letters, digits, dots, dashes and slashes")
    return parts.netloc, prefix


def _split(url: str) -> urllib.parse.SplitResult | None:
    try:
        return urllib.parse.urlsplit(url)
    except ValueError:
        return None


def _check(settings: S3Settings, endpoint: str) -> None:
    parts = _split(endpoint)
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
        raise errors.BadInput("the endpoint of S3 must be an http:// or https:// URL of a host, without keys in it")
    if parts.scheme == "http" and not settings.allow_http:
        raise errors.BadInput(f"{endpoint} is not encrypted; allow http (AWS_ALLOW_HTTP=true) or use https")
    if bool(settings.access_key) != bool(settings.secret_key):
        raise errors.BadInput("an access key and a secret key go together; one of them is missing")
    for name, low, high in (("retries", 0, limits.OBJECT_RETRIES_MAX), ("timeout_ms", 1, limits.SETTING_MS_MAX)):
        value = getattr(settings, name)
        if type(value) is not int or not low <= value <= high:
            raise errors.BadInput(f"S3's {name} is {value!r}; use a whole number from {low} to {high}")


def _connect(bucket: str, prefix: str, endpoint: str, settings: S3Settings) -> obstore.store.S3Store:
    """Everything is said here, because the driver reads what is not said from the environment.

    It does not retry by itself: two loops of retries would multiply, and only ours knows about tokens.
    """
    # The driver's own limit must not end a call before ours does, however large the body is.
    longest = settings.timeout_ms / 1000 + limits.BLOB_BYTES_MAX / limits.OBJECT_BYTES_PER_SECOND_MIN

    def credentials() -> obstore.store.S3Credential:
        return {
            "access_key_id": settings.access_key,
            "secret_access_key": settings.secret_key,
            "token": settings.session_token or None,
            "expires_at": None,
        }

    return obstore.store.S3Store(
        bucket,
        prefix=prefix or None,
        config={
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,
            "region": settings.region,
            # Buckets as paths: that works with servers whose buckets have no host names, too.
            "virtual_hosted_style_request": False,
            "skip_signature": False,
            "unsigned_payload": False,
            "s3_express": False,
            "checksum_algorithm": "SHA256",
            "conditional_put": "etag",
            "disable_bulk_delete": True,
        },
        client_options={
            "allow_http": settings.allow_http,
            "connect_timeout": timedelta(milliseconds=settings.timeout_ms),
            "timeout": timedelta(seconds=longest),
        },
        retry_config={"max_retries": 0},
        credential_provider=credentials if settings.access_key else None,
    )


def _status(error: Exception) -> int | None:
    """The server's status, which the driver gives only in its text; None if there was no answer."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _is_final(error: Exception) -> bool:
    status = _status(error)
    return status is not None and 400 <= status < 500 and status not in _REPEATABLE


def _is_past(name: str, prefix: str) -> bool:
    """Whether names with this prefix can still come. Some servers put `a/b/c` before `a/b-c`, others after it."""
    return not name.startswith(prefix) and name > prefix and name.split("/") > prefix.split("/")


def _micros(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
