"""Mistakes at the command line, and in what it loads."""

from __future__ import annotations

import socket

from sqlalchemy import text

from effects import Unknown, enqueue
from tests.mistakes.shop import KEYS, Doing, Mistake, Shop


def command(name: str, cure: str, *arguments: object) -> Mistake:
    def make(shop: Shop) -> object:
        shop.app()
        return shop.effects(*arguments)

    return Mistake(name, make, cure)


def app_file(name: str, cure: str, module: str, source: str | None = None, *, attribute: str = ":app") -> Mistake:
    def make(shop: Shop) -> object:
        if source is not None:
            shop.write(f"{module}.py", source)
        return shop.effects("--app", f"{module}{attribute}", "status", url=None)

    return Mistake(name, make, cure)


def forgotten_url(shop: Shop) -> object:
    return shop.effects("status", url=None)


def missing_file(shop: Shop) -> object:
    return shop.effects("status", url=f"sqlite:///{shop.folder}/shopp.db")


def no_tables(shop: Shop) -> object:
    shop.write("empty.db", "")
    return shop.effects("status", url=f"sqlite:///{shop.folder}/empty.db")


def newer_tables(shop: Shop) -> object:
    app = shop.app()
    with app.engine.begin() as connection:
        connection.execute(text("UPDATE effects_schema_version SET version_num = 'core_9999' "
                                "WHERE version_num LIKE 'core%'"))  # fmt: skip
    return shop.effects("init")


def server_away(shop: Shop) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return shop.effects("status", url=f"postgresql://shop:secret@127.0.0.1:{port}/shop").replace(str(port), "PORT")


def without_app(shop: Shop) -> object:
    enqueue("shop.charge", {}, effects=shop.app(Doing(lambda: None)))
    return shop.effects("work", "--drain", "--no-progress")


def why_without_app(shop: Shop) -> object:
    enqueue("shop.charge", {}, key="k", effects=shop.app(Doing(lambda: None)))
    return shop.effects("why", "k")


def requeue_held(shop: Shop) -> object:
    doing = Doing(lambda: Unknown("no reply"))
    doing.on_unknown = "hold"
    app = shop.app(doing)
    job = enqueue("shop.charge", {}, key="k", effects=app)
    shop.why(app, "k")
    return shop.effects("retry", job.job_id)


def resolve_waiting(shop: Shop) -> object:
    job = enqueue("scripted", {}, effects=shop.app())
    return shop.effects("resolve", job.job_id, "--as", "give-up", "--reason", "no")


def rotate_without_keys(shop: Shop) -> object:
    shop.app()
    return shop.effects("keys", "rotate", env={"EFFECTS_KEYS": ""})


def retire_active(shop: Shop) -> object:
    shop.app()
    return shop.effects("keys", "retire", "k1", env={"EFFECTS_KEYS": KEYS})


def bad_variable(shop: Shop) -> object:
    shop.app()
    return shop.effects("status", env={"EFFECTS_THREADS": "many"})


def run_coming_slot(shop: Shop) -> object:
    shop.app()
    shop.effects("schedules", "add", "nightly", "--type", "effects.prune", "--cron", "0 7 * * *")
    return shop.effects("schedules", "run", "nightly", "--slot", "2999-01-01T07:00Z")


MISTAKES = [
    command("misspells a command", "is it 'status'?", "statuss"),
    command("misspells an option", "Did you mean '--status'?", "jobs", "list", "--staus", "dead"),
    command("asks for a job that is not there", "(see `effects jobs list`)", "jobs", "show", 4711),
    command("gives a key as job id", "or find it by --key", "jobs", "show", "order:7"),
    command("asks `why` for a key that is not there", "(see `effects jobs list`)", "why", "order:7"),
    command("gives a time in words", "give one such as", "jobs", "list", "--since", "yesterday"),
    command("gives a status that is not there", "'dead'", "jobs", "list", "--status", "died"),
    command("gives threads in words", "emails=8", "work", "--drain", "--queue", "emails=many"),
    command("gives a time limit without `--drain`", "--max-seconds goes with --drain", "work", "--max-seconds", 5),
    command("pauses a limit key that is not there", "--create", "limits", "pause", "webhook:ep_typo", "--for", "5m"),
    command("resumes a queue that is not there", "is it 'emails'?", "queues", "resume", "emials"),
    command("drains a worker that is not there", "(see `effects workers list`)", "workers", "drain", "vm:1:x"),
    command("runs a schedule that is not there", "known: ", "schedules", "run", "nightly"),
    Mistake("runs a slot before its time", run_coming_slot, "give one that has passed"),
    command("gives neither id nor key", "give ID or --key", "jobs", "show"),
    Mistake("forgets EFFECTS_DATABASE_URL", forgotten_url, "EFFECTS_DATABASE_URL is not set"),
    Mistake("misspells the database's file", missing_file, "run `effects init`"),
    Mistake("takes a database without tables", no_tables, "run `effects init`"),
    Mistake("runs `init` of an older version", newer_tables, "upgrade the package"),
    Mistake("has a database server that is down", server_away, "Connection refused"),
    Mistake("drains without the app's job types", without_app, "--app"),
    Mistake("asks `why` without the app's job types", why_without_app, "not registered here"),
    Mistake("retries what may have happened", requeue_held, "--even-if-done"),
    Mistake("resolves a job that waits", resolve_waiting, "only an ended job"),
    Mistake("rotates without keys", rotate_without_keys, "effects keys generate"),
    Mistake("retires the active key", retire_active, "add a newer one first (`effects keys generate`)"),
    Mistake("gives a variable in words", bad_variable, "EFFECTS_THREADS is 'many'; give a number"),
    app_file("misspells the module of --app", "there is no module 'shopp' here or on sys.path", "shopp"),
    app_file("gives --app no attribute", "give module:attribute, such as shop.effects:app", "shop_a", attribute=""),
    app_file("misspells the attribute of --app", "give shop_b:application", "shop_b",
             "from effects import Effects\napplication = Effects()\n"),
    app_file("names something else as --app", "it must be an effects.Effects", "shop_c", "app = 1\n"),
    app_file("has an error in the app's module", "shop_d.py:2", "shop_d", "import os\napp = os.environ['SHOP_URL']\n"),
    app_file("has a syntax error in the app's module", "shop_e.py", "shop_e", "def app(:\n"),
    app_file("imports a module that is not installed", "install it", "shop_f", "import shop_settings\n"),
    app_file("enqueues while the app is imported", "move it into a function", "shop_g",
             "from effects import Effects, enqueue\napp = Effects('sqlite:///shop.db')\n"
             "enqueue('effects.prune', {}, effects=app)\n"),
]  # fmt: skip
