"""Texts of strangers that try to become code, and the columns that a stranger's text may reach."""

from __future__ import annotations

CORPUS = (
    "<script>pwn()</script>", "</script><script>pwn()</script>", "<img src=x onerror=pwn()>", "<svg onload=pwn()>",
    '"><script>pwn()</script>', "'><script>pwn()</script>", '" onmouseover="pwn()" x="', "' autofocus onfocus='pwn()",
    "javascript:pwn()", "data:text/html,<script>pwn()</script>", "<a href=javascript:pwn()>x</a>",
    "<iframe srcdoc='<script>pwn()</script>'>", "<base href=//evil.test/>",
    "<meta http-equiv=refresh content=0;//evil.test>",
    "<style>*{background:url(//evil.test)}</style>", "<link rel=stylesheet href=//evil.test/x.css>", "<b id=pwn>x</b>",
    "{{7*7}}", "{% raw %}", "${7*7}", "#{7*7}", "<%= 7*7 %>", "<!--", "]]>", "<![CDATA[<script>pwn()</script>]]>",
    "<math><mi xlink:href=javascript:pwn()>x", "<details open ontoggle=pwn()>", "<form action=//evil.test><button>x",
    "<input name=form_token value=x>", "<template><script>pwn()</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=pwn()>'>",
    "&lt;script&gt;pwn()&lt;/script&gt;", "&#60;script&#62;", "%3Cscript%3Epwn()%3C/script%3E", "\\u003cscript\\u003e",
    "`<code onclick=pwn()>`", "`</code><script>pwn()</script>`", "<div data-live id=standing>",
    "<a data-key=j href=//evil.test>x",
    "\u202egnp.exe", "\u200b\u2066x", "x" * 4_000, "<x" * 500, "\uff1cscript\uff1e", "+ADw-script+AD4-",
)  # fmt: skip

# Table → the text columns, with the rows that may have them.
FIELDS = {
    "jobs": ("job_type", "queue", "idempotency_key", "group_key", "limit_key", "error_code", "last_error"),
    "job_history": ("job_type", "queue", "idempotency_key", "group_key", "limit_key", "error_code", "last_error"),
    "attempt_log": ("worker", "error_type", "error_code", "message", "stack"),
    "job_actions": ("actor", "reason"),
    "audit_log": ("actor", "action", "subject_kind", "subject", "tenant", "reason"),
    "workers": ("id", "host", "version", "queues", "drain_requested_by", "drain_reason"),
    "limits": ("limit_key", "pause_reason"),
    "queues": ("queue", "reason"),
    "unresolved": ("job_type", "queue", "error_code", "limit_key"),
    "effect_ledger": ("key",),
    "bulk_actions": ("actor", "reason"),
    "webhook_endpoints": ("url", "reason", "description", "tenant", "key", "profile"),
    "webhook_events": ("type", "tenant", "key"),
    "delivered_webhooks": ("state",),
    "sent_emails": (
        "template",
        "template_version",
        "locale",
        "category",
        "transport",
        "message_id",
        "reply",
        "provider_id",
        "outcome",
    ),
    "email_suppressions": ("scope", "source", "actor", "why"),
    "report_runs": ("key", "format", "error_code", "error_text"),
    "report_chunks": ("error_code", "error_text"),
    "report_buckets": ("url",),
    "generated_reports": ("filename", "sha256"),
}
