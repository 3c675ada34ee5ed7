"""Job types of a package: its settings, jobs written with their intents, schedules, limits.

Names without their own docstring:

    ModulesNamed             a function from the name of a module to the modules of that name in a project's apps
    ON_UNKNOWN, OnUnknown    the policies for an unknown outcome
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.app.default import app_of as app_of
    from effects.app.packages import ModulesNamed as ModulesNamed
    from effects.app.packages import PackageSettings as PackageSettings
    from effects.calls.enqueue import insert_intended as insert_intended
    from effects.calls.enqueue import insert_one_intended as insert_one_intended
    from effects.calls.enqueue import insert_reserved as insert_reserved
    from effects.calls.enqueue import reserve_jobs as reserve_jobs
    from effects.model.job_type import routing_of as routing_of
    from effects.model.limits import Breaker as Breaker
    from effects.model.limits import Rate as Rate
    from effects.model.settlement import Execution as Execution
    from effects.model.settlement import Settlement as Settlement
    from effects.retry import ON_UNKNOWN as ON_UNKNOWN
    from effects.retry import OnUnknown as OnUnknown
    from effects.store.effects.by_key import record_followers as record_followers
    from effects.store.limits.key_limits import ensure_limit as ensure_limit
    from effects.store.limits.key_limits import unblock_limit as unblock_limit
    from effects.store.queue.settle import record_existing as record_existing
    from effects.store.schedules import ensure_schedule as ensure_schedule
    from effects.store.schedules import retire_schedule as retire_schedule
