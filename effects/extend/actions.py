"""What a person may do and is told: advice, the audit log, requeue and resolutions.

Names without their own docstring:

    IGNORE    the action's name when a dead letter is resolved without a repeat
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.model.advice import Action as Action
    from effects.model.advice import DoctorFinding as DoctorFinding
    from effects.model.advice import Explanation as Explanation
    from effects.model.advice import Instead as Instead
    from effects.store.audit_log import AuditAction as AuditAction
    from effects.store.audit_log import note as note
    from effects.store.effects.requeue import Requeued as Requeued
    from effects.store.effects.requeue import newest_job as newest_job
    from effects.store.effects.requeue import requeue as requeue
    from effects.store.effects.requeue import resolve_unknown as resolve_unknown
    from effects.store.limits.holds import read_worker_queues as read_worker_queues
    from effects.store.queue.unresolved import IGNORE as IGNORE
    from effects.store.queue.unresolved import is_resolved as is_resolved
    from effects.store.queue.unresolved import record_action as record_action
