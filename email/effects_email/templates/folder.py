"""Templates as files: which there are, in which languages, what each consists of, and which version that is.

    emails/
        welcome/            subject.txt, body.html and body.txt (one of the two may be missing), template.toml
        reminder/           subject.txt and body.md, which gives the HTML and, without a body.txt, the text; and a
                            preheader.txt, which an inbox shows behind the subject
        welcome.de/         the same in German; a variant is whole: it takes no part from elsewhere
        billing/receipt/    called billing/receipt
        _layout.html        what templates extend and include; no template itself
        _markdown.html      the page around each body.md, in place of ours (`LAYOUT`), with
                            `content` (its HTML), `subject`, `preheader`, `locale`, `language` (of the locale, else of
                            template.toml), `brand` and the context's variables
        template.toml       what holds for every template that does not say it itself

`template.toml` may say `category`, `sender`, `transport`, `on_unknown` and `expires_seconds`, the `language` of the
default locale (default en), and for Markdown a `[brand]`: `name`, `logo` (an address, or cid: of an inline image),
`color` of buttons and links (#rrggbb) and `footer`. It stands beside the default language and holds for all. A version
is a hash over the text of all files that a template is made of, those that it extends or includes too.
"""

from __future__ import annotations

import hashlib
import re
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from jinja2 import Environment, TemplateSyntaxError, meta

from effects import ConfigurationError
from effects.extend.jobs import OnUnknown
from effects.extend.text import nearest
from effects_email.errors import TemplateError, TemplateNotFound

LAYOUT_FILE = "_markdown.html"
LAYOUT = """\
<!doctype html>
<html lang="{{ language }}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="supported-color-schemes" content="light dark">
<title>{{ subject }}</title>
<style>
:root { color-scheme: light dark; supported-color-schemes: light dark; }
body { margin: 0; padding: 0; background-color: #f4f4f5; color: #1f2328; -webkit-text-size-adjust: 100%; }
.page { max-width: 600px; margin: 0 auto; padding: 24px; background-color: #ffffff;
  font-family: -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; font-size: 16px; line-height: 1.5;
  overflow-wrap: break-word; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 16px; }
h2 { font-size: 20px; line-height: 1.25; margin: 24px 0 12px; }
h3, h4, h5, h6 { font-size: 16px; line-height: 1.25; margin: 24px 0 8px; }
p, ul, ol, pre, table, blockquote { margin: 0 0 16px; }
ul, ol { padding-left: 24px; }
a { color: {{ brand.color }}; }
.button { display: inline-block; margin: 4px 0; padding: 10px 22px; border-radius: 6px; font-weight: 600;
  text-decoration: none; color: {{ brand.ink }}; background-color: {{ brand.color }}; }
.button:hover { opacity: 0.9; }
.brand { margin: 0 0 24px; font-size: 18px; font-weight: 600; }
.brand img { max-height: 48px; }
.footer { margin: 32px 0 0; padding-top: 16px; border-top: 1px solid #d0d7de; color: #59636e; font-size: 13px; }
.preheader { display: none; max-height: 0; overflow: hidden; mso-hide: all; }
img { max-width: 100%; height: auto; border: 0; }
blockquote { padding-left: 12px; border-left: 4px solid #d0d7de; }
code { font-family: Menlo, Consolas, monospace; font-size: 14px; }
pre { padding: 12px; background-color: #f4f4f5; white-space: pre-wrap; word-wrap: break-word; }
table { border-collapse: collapse; }
.page > table { width: 100%; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid #d0d7de; text-align: left; vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
hr { height: 1px; margin: 24px 0; border: 0; background-color: #d0d7de; }
@media (max-width: 480px) {
  .page { padding: 16px !important; }
  th, td { font-size: 14px !important; }
}
@media (prefers-color-scheme: dark) {
  body { background-color: #0d1117 !important; }
  .page { background-color: #161b22 !important; color: #e6edf3 !important; }
  a { color: #6cb6ff !important; }
  .button { color: {{ brand.ink }} !important; }
  .footer { color: #9198a1 !important; border-color: #444c56 !important; }
  pre { background-color: #0d1117 !important; }
  blockquote, th, td { border-color: #444c56 !important; }
  hr { background-color: #444c56 !important; }
}
</style>
</head>
<body>
{% if preheader %}
<div class="preheader">{{ preheader }}{% for _ in range(60) %}&#847;&zwnj;&nbsp;{% endfor %}</div>
{% endif %}
<div class="page">
{% if brand.logo %}
<p class="brand"><img src="{{ brand.logo }}" alt="{{ brand.name }}"></p>
{% elif brand.name %}
<p class="brand">{{ brand.name }}</p>
{% endif %}
{{ content }}
{% if brand.footer %}
<p class="footer">
{% for line in brand.footer.splitlines() %}
{{ line }}{% if not loop.last %}<br>{% endif %}

{% endfor %}
</p>
{% endif %}
</div>
</body>
</html>
"""


Part: TypeAlias = Literal["subject.txt", "body.html", "body.md", "body.txt", "preheader.txt"]
PARTS: tuple[Part, ...] = ("subject.txt", "body.html", "body.md", "body.txt", "preheader.txt")
PREHEADER: Part = "preheader.txt"
SETTINGS_FILE = "template.toml"
SUBJECT: Part = "subject.txt"
LOOK_AGAIN_SECONDS = 1.0  # so often at most is the folder looked at for changes
PACKAGE = "package:"
NO_TEMPLATE = "no.template"  # no folder can be called so
NAME_CHARS_MAX = 100
LOCALE_CHARS_MAX = 35  # as long as a tag of a language may be that all programs take (RFC 5646, 4.4.1)
CACHED_MAX = 1000  # names in languages, found or not: apps may pass on what a browser asks for
EXPIRES_SECONDS_MAX = 10 * 366 * 86_400
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(?:/[a-z0-9][a-z0-9_-]*)*")
_LOCALE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")


class MergedFolder(Traversable):
    """The union of folders, which may be in packages: of two files with one name the first counts."""

    def __init__(self, folders: Sequence[Traversable]) -> None:
        self._folders = folders

    @property
    def name(self) -> str:
        return self._folders[0].name

    def is_dir(self) -> bool:
        return True

    def is_file(self) -> bool:
        return False

    def open(self, *_: Any, **__: Any) -> Any:
        raise IsADirectoryError(self.name)

    def read_bytes(self) -> bytes:
        raise IsADirectoryError(self.name)

    def read_text(self, encoding: str | None = None) -> str:
        raise IsADirectoryError(self.name)

    def iterdir(self) -> Iterator[Traversable]:
        """Each name once."""
        names = dict.fromkeys(child.name for child in chain.from_iterable(folder.iterdir() for folder in self._folders))
        return (self.joinpath(name) for name in names)

    def joinpath(self, *parts: Any) -> Traversable:
        """A file of the first folder that has it, or the union of all folders of this name."""
        candidates = [folder.joinpath(*parts) for folder in self._folders]
        if files := [child for child in candidates if child.is_file()]:
            return files[0]
        if len(folders := [child for child in candidates if child.is_dir()]) > 1:
            return MergedFolder(folders)
        return folders[0] if folders else candidates[0]


class Brand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page around Markdown shows of the sender. `footer`: text, one line or several."""

    name: str = ""
    logo: Annotated[str, msgspec.Meta(pattern=r"^((https?://|cid:)[!-~]+)?$")] = ""
    color: Annotated[str, msgspec.Meta(pattern=r"^#[0-9A-Fa-f]{6}$")] = "#0b57d0"
    footer: str = ""

    @property
    def ink(self) -> str:
        """The colour of words on `color`: white, or black where that reads better (WCAG's luminance)."""
        red, green, blue = (int(self.color[place : place + 2], 16) / 255 for place in (1, 3, 5))
        luminance = sum(
            share * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
            for share, part in ((0.2126, red), (0.7152, green), (0.0722, blue))
        )
        return "#ffffff" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "#000000"


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of `template.toml`."""

    category: str | None = None
    sender: str | None = None
    transport: str | None = None
    on_unknown: OnUnknown | None = None
    expires_seconds: Annotated[float, msgspec.Meta(gt=0, le=EXPIRES_SECONDS_MAX)] | None = None
    language: Annotated[str, msgspec.Meta(pattern=f"^{_LOCALE.pattern}$")] = "en"
    brand: Brand = Brand()


class Version(msgspec.Struct, frozen=True):
    """A template in one language, as its files are now."""

    name: str
    locale: str | None  # None is the default
    version: str  # 16 hexadecimal digits
    parts: tuple[Part, ...]
    declared: Declared
    sources: Mapping[str, str]  # path in the folder → text, of all that it is made of

    def path(self, part: str) -> str:
        return f"{_folder(self.name, self.locale)}/{part}"


def without_template(layout: str | None = None) -> Version:
    """What a message of the caller's own words has in place of a template; `layout` is the page around its Markdown."""
    sources = {} if layout is None else {LAYOUT_FILE: layout}
    version = "-" if layout is None else _hash(sources)
    return Version(name=NO_TEMPLATE, locale=None, version=version, parts=(), declared=Declared(), sources=sources)


class TemplateFolder:
    """The folder of an app's templates, on disk or in a package.

    Args:
        place: a path, `package:shop.emails`, or several paths: of two files with one name the first counts.

    Raises:
        ConfigurationError: there is no such folder or package.
    """

    def __init__(self, place: str | Path | Sequence[Path]) -> None:
        places = [place] if isinstance(place, str | Path) else place
        self.place = ", ".join(_shown(str(path)) for path in places)
        roots = [_root(str(path)) for path in places]
        self.root: Traversable = roots[0] if len(roots) == 1 else MergedFolder(roots)
        self._syntax = Environment(autoescape=True)  # reads, never renders
        self._versions: dict[tuple[str, str | None], tuple[float, tuple[object, ...], Version | None]] = {}

    def find(self, name: str, locale: str | None = None) -> Version:
        """The template in this language: exactly it, else its language without a region, else the default.

        Raises:
            TemplateNotFound: no template has this name, or the name is invalid.
            TemplateError: its files are unusable; the message names file and reason.
        """
        check_name(name)
        for candidate in locale_chain(locale):
            if (version := self._read(name, candidate)) is not None:
                return version
        near = nearest(name, {template for template, _ in self.names()})
        raise TemplateNotFound(
            f"there is no template {name!r} in {self.place}{near} (see `effects email templates list`)"
        )

    def names(self) -> list[tuple[str, str | None]]:
        """Every template and every language it is in."""
        return sorted(self._walk(self.root, ""), key=lambda pair: (pair[0], pair[1] or ""))

    def _walk(self, folder: Traversable, prefix: str) -> Iterator[tuple[str, str | None]]:
        for child in folder.iterdir():
            if not child.is_dir() or child.name.startswith(("_", ".")):
                continue
            if child.joinpath(SUBJECT).is_file():
                name, _, locale = child.name.partition(".")
                yield f"{prefix}{name}", locale or None
            if "." not in child.name:  # a language holds no further templates
                yield from self._walk(child, f"{prefix}{child.name}/")

    def _read(self, name: str, locale: str | None) -> Version | None:
        cached = self._versions.get((name, locale))
        now = time.monotonic()
        if cached is not None:
            looked_at, marks, version = cached
            if now - looked_at < LOOK_AGAIN_SECONDS:
                return version
            if version is not None and marks == self._marks(version):
                self._versions[name, locale] = (now, marks, version)
                return version
        if len(self._versions) >= CACHED_MAX:
            self._versions.clear()
        folder = self._variant(name, locale)
        if folder is None:
            self._versions[name, locale] = (now, (), None)
            return None
        marks = self._marks(self._load(name, folder, locale))
        version = self._load(name, folder, locale)  # after the marks: a file that changes meanwhile is read again
        self._versions[name, locale] = (now, marks, version)
        return version

    def _variant(self, name: str, locale: str | None) -> str | None:
        """The folder of this language, however its name writes the locale."""
        if locale is None:
            return name if self.root.joinpath(name, SUBJECT).is_file() else None
        parent, _, last = name.rpartition("/")
        above = self.root.joinpath(parent) if parent else self.root
        if not above.is_dir():
            return None
        for child in above.iterdir():
            base, _, written = child.name.partition(".")
            if base == last and written and _plain(written) == locale and child.joinpath(SUBJECT).is_file():
                return f"{parent}/{child.name}" if parent else child.name
        return None

    def _load(self, name: str, folder: str, locale: str | None) -> Version:
        sources: dict[str, str] = {}
        parts = tuple(part for part in PARTS if self.root.joinpath(folder, part).is_file())
        if not {"body.html", "body.md", "body.txt"} & {*parts}:
            raise TemplateError(f"template {name!r}: {folder} has none of body.html, body.md and body.txt")
        if {"body.html", "body.md"} <= {*parts}:
            raise TemplateError(f"template {name!r}: {folder} has both body.html and body.md; delete one of them")
        if PREHEADER in parts and "body.md" not in parts:
            raise TemplateError(f"template {name!r}: {PREHEADER} is for body.md; write it into body.html")
        for part in parts:
            self._collect(name, f"{folder}/{part}", sources)
        if "body.md" in parts:
            self._collect(name, LAYOUT_FILE, sources)
        for path in (SETTINGS_FILE, f"{name}/{SETTINGS_FILE}"):
            if (text := self._text(path)) is not None:
                sources[path] = text
        declared = _declared(name, sources)
        _, _, suffix = folder.partition(".")
        return Version(name, suffix or None, _hash(sources), parts, declared, sources)

    def _collect(self, name: str, path: str, sources: dict[str, str]) -> None:
        """This file and all that it extends, includes or imports."""
        if path in sources:
            return
        text = self.markdown_layout() if path == LAYOUT_FILE else self._text(path)
        if text is None:
            raise TemplateError(f"template {name!r}: there is no file {path}")
        sources[path] = text
        try:
            included = list(meta.find_referenced_templates(self._syntax.parse(text)))
        except TemplateSyntaxError as error:
            raise TemplateError(f"template {name!r}: {path}, line {error.lineno}: {error.message}") from None
        for included_name in included:
            if included_name is None:
                raise TemplateError(f"template {name!r}: {path} includes by a variable; name the file")
            if path.endswith((".html", ".md")) and Path(included_name).suffix != Path(path).suffix:
                raise TemplateError(
                    f"template {name!r}: {path} includes {included_name}, whose text would not be escaped"
                )
            self._collect(name, included_name, sources)

    def markdown_layout(self) -> str:
        """The page around Markdown: the app's, else ours."""
        text = self._text(LAYOUT_FILE)
        return LAYOUT if text is None else text

    def _text(self, path: str) -> str | None:
        if ".." in path.split("/") or path.startswith("/"):
            raise TemplateError(f"the path {path!r} leaves the folder of the templates")
        file = self.root.joinpath(path)
        try:
            return file.read_text("utf-8-sig") if file.is_file() else None
        except FileNotFoundError:  # deleted since it was seen
            return None
        except OSError as error:
            raise TemplateError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from None
        except UnicodeDecodeError:
            raise TemplateError(f"{path} is not UTF-8") from None

    def _marks(self, version: Version) -> tuple[object, ...]:
        """What changes when a file does; nothing where the templates are in a package that is no folder."""
        if not isinstance(self.root, Path | MergedFolder):
            return ()
        marks: list[object] = []
        own = [version.path(part) for part in PARTS]  # one that is new is a change too
        for path in sorted({*version.sources, *own, SETTINGS_FILE, f"{version.name}/{SETTINGS_FILE}"}):
            file = self.root.joinpath(path)
            marks.append(_mark(file))
        return tuple(marks)


def _mark(file: Traversable) -> object:
    if not isinstance(file, Path):
        return None
    try:
        status = file.stat()
    except OSError:  # missing, or not to be read, which reading it says
        return None
    return status.st_mtime_ns, status.st_size


def check_name(name: str) -> str:
    """
    Raises:
        TemplateNotFound: no template can have this name, such as one that would leave the folder.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise TemplateNotFound(
            f"template {str(name)[:NAME_CHARS_MAX]!r}: give a name such as 'welcome' or 'shop/receipt'"
        )
    return name


def locale_chain(locale: str | None) -> list[str | None]:
    """`de_AT` → de-at, de, the default.

    Raises:
        TemplateNotFound: it is no locale.
    """
    if locale is None:
        return [None]
    if len(locale) > LOCALE_CHARS_MAX or not _LOCALE.fullmatch(locale):
        raise TemplateNotFound(f"locale {locale[:40]!r}: give a language and perhaps a region, such as de or de-AT")
    plain = _plain(locale)
    pieces = plain.split("-")
    return ["-".join(pieces[:count]) for count in range(len(pieces), 0, -1)] + [None]


def _plain(locale: str) -> str:
    return locale.replace("_", "-").lower()


def _folder(name: str, locale: str | None) -> str:
    return name if locale is None else f"{name}.{locale}"


def _root(place: str) -> Traversable:
    if place.startswith(PACKAGE):
        try:
            root = files(place.removeprefix(PACKAGE))
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"EFFECTS_EMAIL_TEMPLATES is {place!r}: {error}") from None
    else:
        root = Path(place)
    if not root.is_dir():
        absolute = "" if place == _shown(place) else f" ({_shown(place)})"
        raise ConfigurationError(f"EFFECTS_EMAIL_TEMPLATES is {place!r}; there is no such folder{absolute}")
    return root


def _shown(place: str) -> str:
    return place if place.startswith(PACKAGE) else str(Path(place).absolute())


def _declared(name: str, sources: Mapping[str, str]) -> Declared:
    """What the folder's file says, and over it the template's own."""
    declared: dict[str, Any] = {}
    for path in (SETTINGS_FILE, f"{name}/{SETTINGS_FILE}"):
        try:
            own = tomllib.loads(sources.get(path, ""))
            msgspec.convert(own, Declared)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            where = SETTINGS_FILE if path != SETTINGS_FILE else f"{SETTINGS_FILE} of the folder"
            raise TemplateError(f"template {name!r}: {where}: {error}") from None
        brand = {**declared.get("brand", {}), **own.get("brand", {})}
        declared = {**declared, **own, **({"brand": brand} if brand else {})}
    return msgspec.convert(declared, Declared)


def _hash(sources: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources):
        for text in (path, sources[path]):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]
