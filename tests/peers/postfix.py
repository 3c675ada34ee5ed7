"""A real Postfix of a test's own: a folder with everything in it, a port on loopback, delivery into a maildir.

It asks for TLS and for AUTH, and takes mail for example.org alone. Root is needed to start one: its parts run as users
of their own. Debian's reads the SASL configuration from `sasl/` beside main.cf, whatever main.cf says.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme

from tests.support import needs
from tests.support.waiting import wait_until

USER, PASSWORD = "shop", "p@ss w/rd"
_QUEUE_ID = re.compile(rb" with E?SMTPS?A? id ([0-9A-Za-z]+)")  # of its own Received, the first

_MAIN = """
compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {folder}/data
command_directory = {commands}
daemon_directory = {daemons}
mail_owner = postfix
setgid_group = postdrop
myhostname = mail.test
mydestination =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
maillog_file_prefixes = {folder}
maillog_file = {folder}/log
biff = no
smtpd_delay_reject = yes
alias_maps =
alias_database =
smtpd_tls_security_level = encrypt
smtpd_tls_cert_file = {folder}/tls/server.pem
smtpd_tls_key_file = {folder}/tls/server.pem
smtpd_tls_loglevel = 1
tls_random_source = dev:/dev/urandom
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = cyrus
smtpd_sasl_path = smtpd
smtpd_sasl_local_domain = mail.test
cyrus_sasl_config_path = {folder}/etc/sasl
smtpd_relay_restrictions = permit_sasl_authenticated, reject
smtpd_recipient_restrictions = permit_sasl_authenticated, reject
message_size_limit = 1000000
virtual_mailbox_domains = example.org
virtual_mailbox_base = {folder}/mail
virtual_mailbox_maps = regexp:{folder}/mailboxes
virtual_minimum_uid = 1
virtual_uid_maps = static:{uid}
virtual_gid_maps = static:{gid}
"""
_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
pickup    unix  n - n 60 1 pickup
cleanup   unix  n - n - 0 cleanup
qmgr      unix  n - n 300 1 qmgr
tlsmgr    unix  - - n 1000? 1 tlsmgr
rewrite   unix  - - n - - trivial-rewrite
bounce    unix  - - n - 0 bounce
defer     unix  - - n - 0 bounce
trace     unix  - - n - 0 bounce
verify    unix  - - n - 1 verify
flush     unix  n - n 1000? 0 flush
proxymap  unix  - - n - - proxymap
showq     unix  n - n - - showq
error     unix  - - n - - error
retry     unix  - - n - - error
discard   unix  - - n - - discard
virtual   unix  - n n - - virtual
smtp      unix  - - n - - smtp
anvil     unix  - - n - 1 anvil
scache    unix  - - n - 1 scache
postlog   unix-dgram n - n - 1 postlogd
"""
_SASL = """
pwcheck_method: auxprop
auxprop_plugin: sasldb
sasldb_path: {folder}/users
mech_list: PLAIN LOGIN
"""


class Postfix:
    """`with Postfix(authority) as server: … server.port … server.messages()`.

    Args:
        settings: lines of main.cf, in the place of those that it has.
    """

    def __init__(self, authority: trustme.CA, settings: str = "") -> None:
        self._program = needs.program("postfix")
        self._passwords = needs.program("saslpasswd2")
        if os.geteuid() != 0:
            needs.missing("a Postfix of our own is started by root")
        self._authority = authority
        self._settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="effects-postfix-"))
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._configure()
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def restart(self) -> None:
        """End it and start it again: connections are cut, and there is none for a moment. What it took stays."""
        self._stop()
        self._start()

    def reload(self) -> None:
        """Read the configuration and its tables again."""
        subprocess.run(
            [self._program, "-c", str(self.folder / "etc"), "reload"], check=True, capture_output=True, timeout=30
        )

    def messages(self) -> list[bytes]:
        """What was delivered, as it lies in the mailbox."""
        return [file.read_bytes() for file in sorted((self.folder / "mail" / "inbox" / "new").glob("*"))]

    def taken(self) -> list[bytes]:
        """The same, each once that was taken: a relay that ends in the midst of a delivery delivers by itself again."""
        by_queue_id = {}
        for message in self.messages():
            queue_id = _QUEUE_ID.search(message)
            assert queue_id is not None, message[:500]
            by_queue_id[queue_id[1]] = message
        return list(by_queue_id.values())

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    def _configure(self) -> None:
        owner = pwd.getpwnam("postfix")
        self.folder.chmod(0o755)
        for name in ("etc", "etc/sasl", "tls", "queue", "queue/pid", "data", "mail"):
            (self.folder / name).mkdir()
        shutil.chown(self.folder / "data", "postfix", "postfix")
        shutil.chown(self.folder / "mail", "postfix", "postfix")
        facts = {
            "folder": self.folder, "port": self.port, "uid": owner.pw_uid, "gid": owner.pw_gid,
            "commands": Path(self._program).parent, "daemons": _daemons(),
        }  # fmt: skip
        own = {line.partition("=")[0].strip() for line in self._settings.splitlines()}
        lines = [line for line in _MAIN.format(**facts).splitlines() if line.partition("=")[0].strip() not in own]
        (self.folder / "etc" / "main.cf").write_text("\n".join([*lines, self._settings, ""]))
        (self.folder / "etc" / "master.cf").write_text(_MASTER.format(**facts))
        (self.folder / "etc" / "sasl" / "smtpd.conf").write_text(_SASL.format(**facts))
        (self.folder / "mailboxes").write_text("/^user[0-9]+@example\\.org$/ inbox/\n")
        self._authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
            str(self.folder / "tls" / "server.pem")
        )
        subprocess.run(
            [self._passwords, "-p", "-c", "-f", str(self.folder / "users"), "-u", "mail.test", USER],
            input=PASSWORD.encode(), check=True, capture_output=True,
        )  # fmt: skip
        shutil.chown(self.folder / "users", "postfix", "postfix")

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "-c", str(self.folder / "etc"), "start-fg"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self._answers, seconds=30)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"postfix ended as {getpass.getuser()}:\n{self.log}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _stop(self) -> None:
        if self._process is not None:
            master = self.folder / "queue" / "pid" / "master.pid"  # `start-fg` only waits for it
            if master.exists():
                os.kill(int(master.read_text()), signal.SIGTERM)
            self._process.wait(20)
            self._process = None

    def _end(self) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _daemons() -> Path:
    """Where Debian, and others, keep Postfix's parts."""
    places = [Path("/usr/lib/postfix/sbin"), Path("/usr/libexec/postfix"), Path("/usr/lib/postfix")]
    return next((place for place in places if (place / "master").exists()), places[0])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
