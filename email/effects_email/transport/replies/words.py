"""Classification of a mail server's reply by its words: the reply table, as data.

The first row that fits holds: what is special stands above what is general. One recipient's affairs that look like
ours come first, then all that is ours, then what is wrong with a recipient, then the message. Replies of real servers,
with the verdicts of other mail programs beside ours, are data of the tests: tests/email/replies.
"""

from __future__ import annotations

from effects_email.transport.replies.codes import MESSAGE, NAMED, Row

WORDS: tuple[Row, ...] = (
    # -- one recipient, whatever else the words are like -------------------------------------------------------
    Row(
        topic="closed_to_us", stages=NAMED,
        says=(
            r"RESOLVER\.RST\.\w*(AuthRequired|NotAuthorized|NotAuthenticatedFor|Restricted)",
            r"sender (was )?not authenticated (by organi[sz]ation|for (the )?(group|mailbox|public folder))",
            r"sender not in allowed.senders list|SenderFilterConfig",
            r"not (authori[sz]ed|allowed|permitted) to (send|post|write)( \w+)? to (this|the|that|your) "
            r"(recipient|group|(mailing |distribution )?list|mailbox|user|address)",
            r"(rejected|blocked|blacklisted) by (this |the )?(user|recipient)\b(?!'s (domain|org))",
            r"only (accepts?|receives?) (mail|messages?) from|members may post|not a member of",
            r"not on (the )?recipient'?s (allow|white|safe)",
        ),
        sources="Exchange Online NDR table; zone-mta bounces.txt; Mailman",
    ),
    Row(topic="closed_to_us", stages=NAMED, enhanced="x.7.124 x.7.133 x.7.134 x.7.135 x.7.136",
        sources="Exchange Online NDR table"),
    Row(
        topic="busy_mailbox", stages=NAMED,
        says=(
            r"(user|recipient|mailbox|account)\b[^.]{0,60}\b(receiving|getting) (e-?)?mail (too|at a rate)",
            r"ReceivingRate|recipient thread limit|per hour message receive limit",
            r"recipient has exceeded (their|its) limit",
            r"messages to \S+ (are )?(temporarily )?deferred",
        ),
        sources="Gmail SMTP errors and codes; Exchange Online NDR table; Apple iCloud",
    ),
    Row(topic="busy_mailbox", stages=NAMED, enhanced="x.2.121 x.2.122", sources="Exchange Online NDR table"),
    # -- waiting rooms ----------------------------------------------------------------------------------------
    Row(topic="greylisted", stages=MESSAGE,
        says=(r"gr[ea]y.?list", r"temporary rejection[\w ]*(first|unknown) (contact|time)"),
        sources="Postgrey; zone-mta bounces.txt"),
    Row(topic="bad_company", stages=NAMED,
        says=(r"(too many|excessive) (bad|invalid|unknown) (recipients|users|addresses)",),
        sources="Exim configure.default; Yahoo Sender Hub; zone-mta bounces.txt"),
    Row(topic="policy", stages=MESSAGE, says=(r"with the same Message-ID",), sources="Gmail SMTP errors and codes"),
    # -- our rate and our quota -------------------------------------------------------------------------------
    Row(
        topic="quota", stages=MESSAGE,
        says=(
            r"(daily|24.hour|monthly) [\w ]*(quota|limit)|quota exceeded for (today|the day)|limit (for|of) the day",
            r"(daily|hourly|monthly|sending|submission|relay)[\w -]{0,30}(limit|quota)\b[\w ]{0,12} (exceeded|reached)",
            r"exceeded (the|its|your) max(imum)? [\w ]*(e-?mails?|messages|failures) per (hour|day)",
            r"sent to too many recipients|exceeded (its|your) (sending|e-?mail|message) (limit|quota)",
            r"(e-?mails?|messages?|sending|relay|outgoing) (limit|quota) (for|of) (your|this) "
            r"(account|customer|user|domain)",
            r"\byour account\b[^.;]{0,30}\bprobation|\bmax defers and failures per hour",
        ),
        sources="Amazon SES SMTP response codes; Gmail SMTP errors and codes; "
        "Exchange Online NDR table; cPanel; GoDaddy",
    ),
    Row(topic="quota", stages=MESSAGE, enhanced="x.1.90", sources="Exchange Online NDR table"),
    Row(
        topic="deferred", stages=MESSAGE, codes="4xx",
        says=(r"\[?\b(IP)?TSS?\d{2}\b", r"deferred due to (user complaints|(unexpected|excessive) volume)",
              r"\b(DYN:T|RP-00)\d|\bHCM1\b|messages? from \S+ (temporarily )?deferred"),
        sources="Yahoo Sender Hub SMTP error codes; AOL error codes; KumoMTA shaping.toml",
    ),
    Row(topic="deferred", stages=MESSAGE, codes="554", says=(r"\bRLY:(CS|CH|NW)\d|\bRLY:B[123]\b",),
        sources="AOL error codes; zone-mta bounces.txt"),
    Row(
        topic="full_mailbox", stages=NAMED,
        says=(r"too (many|much) (mail|messages) (stored )?(in his mailbox|on the server)", r"disk quota exceeded"),
        sources="web.de; qmail with quotas",
    ),
    Row(
        topic="rate", stages=MESSAGE,
        says=(
            r"throttl|rate.?limit|rate exceeded|frequency limit|slow down|too (quick|fast)ly?\b",
            r"\b(sending|send|message|unusual|connection) rate\b|per.second (message|sending|send)",
            r"too (many|much) (e-?mails?|mail|messages?|requests|connections|concurrent|simultaneous|sessions|new)\b",
            r"too many recipients from",
            r"max(imum)? (number of )?(messages?|connections?)\b[\w ]* (reached|exceeded)",
            r"exceed(ed|s)?( \w+)? max(imum)? (number of |concurrent )?(connections|messages)",
            r"exceeded permitted limits",
            r"(frequent|many) connects? from",
        ),
        sources="Gmail SMTP errors and codes; Exchange Online NDR table; Outlook.com postmaster; "
        "Postfix anvil; Exim; QQ; GMX",
    ),
    Row(topic="rate", stages=MESSAGE, enhanced="x.7.28 x.7.508",
        sources="IANA enhanced status codes; Exchange Online NDR table"),
    Row(topic="too_many_recipients", stages=("rcpt",), says=("too many recipients",), sources="Postfix smtpd.c; Exim"),
    # -- what the message links to or says, before the lists of senders ----------------------------------------
    Row(
        topic="content", stages=MESSAGE,
        says=(
            r"\b(url|link)s?\b[^;]{0,60} (listed|black|block)|uribl\.com|surbl\.org|spammy url",
            r"(contains?|detected|found)( \w+){0,3} (virus|malware|spam|phish)|virus (found|detected)|\bmalware\b",
            r"(message|mail|e-?mail|content)( \w+){0,4} (as|is|like|to be|due to) (\w+ )?(spam|virus|unsolicited|junk)",
            r"content (is )?(rejected|denied|policy|not accept)|spam (content|pattern|message)|known spam signature",
            r"illegal attachment|quarantined|content presents a potential security",
            r"attachment (type )?(is )?not (allowed|accepted)",
            r"nature of the content or the links|scored as spam|\bSPAM\. See|spamtext|MCSpamSignature|RLY:BD|HVU:B",
            r"\bDT:SPM\b",
        ),
        sources="Gmail SMTP errors and codes; zone-mta bounces.txt; KumoMTA bounces.toml; AOL error codes",
    ),
    Row(topic="malformed", stages=NAMED, codes="5xx",
        says=(r"duplicate header|multiple (addresses|subject)|\baddress\b[^.;]{0,30}\bheader|\bheader address"
              r"|reply-to\b[^.;]{0,20}\binvalid",),
        sources="Amazon SES; Gmail SMTP errors and codes"),
    # -- our IP address and reputation ------------------------------------------------------------------------
    Row(topic="client", stages=MESSAGE, says=(r"(client host|helo command) rejected",),
        sources="Postfix smtpd_check.c"),
    Row(
        topic="listed", stages=MESSAGE,
        says=(
            r"black.?list|block.?list|\bDNS?BL|\bRBL\b|spamhaus|sorbs",
            r"barracuda|spamcop|cloudmark|abuseat|proofpoint|csi\.",
            r"\b(blocked|rejected|listed|found) (using|by|at|in|on) \S*(\w+\.)+\w{2,}|is listed (at|in|on|by)\b",
            r"(poor|bad|low) (\w+ )?reputation|reputation of (the|your)|due to (ip|domain|sender) reputation",
            r"(your|sending|client|remote|server|the|this)( \w+)? (ip|host|address|server|network)\b[^.;]{0,80}"
            r"\b(block|bann|bad|spammer|abus|not welcome|denied)",
            r"banned (sending ip|sender)|mail from ip banned|you are (sending spam|in the spammer)|spam abuse detected",
            r"blocked for spam|spamming not allowed|-IP0 deferred|mail from (ip )?[\d.]{7,} (not|was|rejected)",
            r"unsolicited mail originating|traffic not accepted from this ip|geographical|geoip|\bBad IP\b",
            r"blocked ip|connections (will )?not (be )?accepted from|network not allowed|part of their network",
            r"permanently deferred|\[(BL|TSS)\d+\]|ip[:=]\S+ - a problem occurred",
            r"access denied, please try again later",
            r"\b(OU|SC|DY)-00\d|\bRTR:|\bCON:B1|\bRLY:(BL|IR|SN)|ipcheck|VS1-(IP|MF)|is_blocked",
        ),
        sources="zone-mta bounces.txt; KumoMTA bounces.toml; Outlook.com postmaster; Yahoo Sender Hub; AOL error codes",
    ),
    # -- our relay, login and account -------------------------------------------------------------------------
    Row(
        topic="relay", stages=MESSAGE,
        says=(
            r"relay(ing)?( mail)?( \w+)? (denied|prohibited|rejected|disallowed|not (permitted|allowed))",
            r"(not (permitted|allowed|configured)|unable|denied|isn't allowed|cannot) to relay|relay not permitted",
            r"allowed rcpt.?hosts|we do not relay|TenantAttribution|trying to use me .{0,60}as a relay",
        ),
        sources="Postfix smtpd_check.c; Exim configure.default; qmail; Exchange Online NDR table; Yahoo",
    ),
    Row(
        topic="credentials", stages=MESSAGE,
        says=(
            r"(authentication|authorization|smtp auth\w*|log.?in|encryption|starttls) (is )?(required|needed)",
            r"(requires?|turn on|enable|must|please) (smtp )?(authentication|authenticate|log ?in)\b",
            r"client was not authenticated|not logged in|must issue a starttls",
            r"(before|first).{0,20}\bauth\b|\bTLS (is )?required",
            r"invalid (user )?credential|authentication (failed|credentials)|bad password|\bPOP before SMTP\b",
        ),
        sources="Amazon SES SMTP response codes; Gmail SMTP errors and codes; "
        "Exchange Online NDR table; Postal; KumoMTA",
    ),
    Row(
        topic="account", stages=MESSAGE,
        says=(
            r"(address|sender|domain|identity) (is )?not verified",
            r"identities failed the check|not authorized to perform",
            r"account (is |has been )?(paused|not subscribed|under review)|sending (is )?(paused|suspended|denied)",
            r"tenant has exceeded|mail server has been suspended|sending (has been |is )?disabled|unregistered domains",
            r"bad outbound sender|not (allowed|authori[sz]ed|permitted) to send (mail )?from",
            r"OutboundSpam|unusual sending activity|unsolicited e-?mails? originating from your (address|account)",
            r"(unconfigured|unverified) (sending |sender )?domain|not associated with your account",
            r"activate your \w+ account",
            r"domain \S+ is not allowed to send|(sandbox|free|trial) (sub)?(domain|account)s? (is|are) for test",
            r"(\byour( [\w-]+)?|send(er|ing)('s)?( e-?mail)?) (account|mailbox|domain|user)\b[^.;]{0,60}"
            r"\b(suspended|disabled|deactivated|inactive|not (yet )?activ|blocked|locked|closed|expired|flagged)",
            r"(outgoing|outbound) (e-?mails?|messages?|mail)\b[^;]{0,80}\b(suspended|disabled|blocked)",
            r"outgoing blocked",
        ),
        sources="Amazon SES SMTP response codes; Exchange Online NDR table; Gmail SMTP relay errors; SendGrid; Postal; "
        "cPanel; Mailgun; Zoho; issues of mail libraries",
    ),
    # -- our sender address, before what is said of recipients in the same words ---------------------------------
    Row(
        topic="unauthenticated", stages=MESSAGE,
        says=(
            r"\bDMARC\b|\bDKIM\b|sender policy framework|\bSPF\b",
            r"unauthenticated (e-?mail|sender)|fails to pass authentic",
            r"sender is unauthenticated|DmarcRejection",
        ),
        sources="Gmail SMTP errors and codes; Yahoo Sender Hub; Exchange Online NDR table; Apple iCloud; Mail.ru",
    ),
    Row(topic="unauthenticated", stages=MESSAGE, codes="5xx",
        enhanced="x.7.20 x.7.21 x.7.22 x.7.23 x.7.24 x.7.26 x.7.29 x.7.30 x.7.509 x.7.515",
        sources="IANA enhanced status codes; Gmail SMTP errors and codes; Exchange Online NDR table"),
    Row(
        topic="client", stages=MESSAGE,
        says=(
            r"(helo|ehlo)\b[^.]{0,30} (rejected|refused|invalid|denied|argument)|bad helo|invalid helo",
            r"reverse (dns|hostname)|\brdns\b|\bPTR\b|does not resolve to|cannot find your (reverse )?hostname",
            r"not in whitelist|you are not allowed to connect|is not allowed from your host|your mail is not welcome",
            r"\b(ip|client)[ -](address|adresse)\b[^.;]{0,40}\b(unknown|unbekannt)",
            r"access to (submit messages|this mail system)|ipv6 sending guidelines|accept (e-?mail|mail) over ipv6",
            r"\bIP\b[^.;]{0,60}\bnot (allowed|authori[sz]ed) to (send|connect)|mail not allowed from this range",
        ),
        sources="Postfix smtpd_check.c; Gmail SMTP errors and codes; Exchange Online NDR table; Haraka",
    ),
    Row(topic="client", stages=MESSAGE, codes="5xx", enhanced="x.7.25 x.7.506 x.7.510 x.7.511",
        sources="IANA enhanced status codes; Exchange Online NDR table"),
    Row(
        topic="sender", stages=MESSAGE,
        says=(
            r"\b(sender|from|return.?path)\b( address| domain| name)?( is| was)? ?"
            r"(rejected|refused|denied|invalid|unknown|not (owned|allowed|accepted|valid|permitted|found|exist))",
            r"(sender|callout|callback)[ -](verif|address verif|setup fail)|verification failed for|sender verify",
            r"(domain of (the )?sender|(envelope )?sender.{0,12}domain|sending domain|sender \S+)[^.]{0,80}"
            r"(not exist|must exist|no A, AAAA|does not accept|not found|resolve|unresolvable|not valid|not a valid)",
            r"invalid (mail from|sender|from)\b|bad sender|spoofed mail from",
            r"From:? (domain|name|header|address).{0,12}invalid",
            r"mail from\b.{0,60}\b(not allowed|rejected|denied|is not accepted)",
            r"from/sender name|unresolvable.{0,20}from",
            r"(unrecogni[sz]ed|unauthori[sz]ed|unauthenticated|unroutable|unrouteable) senders?\b",
            r"does not match (the )?auth|dns check failed|doesn't match auth|must be (the )?same as auth",
            r"send.?as.?denied|(not allowed|not permitted|not have permissions?) to send (as|on behalf)\b",
            r"not (a )?local sender|local user only|blank sender|unvalidated sender|not one of your addresses",
            r"(\bsend(er|ing)('s)?|\breturn|\byour|\bfrom)( e-?mail)? address\b[^.;]{0,40}"
            r"\b(unknown|invalid|rejected|blocked|not (valid|found|known)|n[o']t exist|not a valid)|\babsender",
        ),
        sources="Postfix smtpd_check.c; Exim verify.c; Haraka; Postal; Exchange Online NDR table; Yahoo; KumoMTA; "
        "issues of mail libraries",
    ),
    Row(topic="sender", stages=NAMED, codes="5xx", enhanced="x.1.7 x.1.8",
        sources="IANA enhanced status codes; Exchange says `Invalid address` beside it, as of a recipient"),
    # -- what is wrong with one recipient ---------------------------------------------------------------------
    Row(
        topic="full_mailbox", stages=NAMED,
        says=(
            r"(mailbox|inbox|user|account|recipient|quota)\b.{0,60}\b(full|over ?quota|out of storage|storage space)",
            r"over.?quota|quota (is )?exceeded",
            r"exceed(s|ed)? .{0,20}(storage|mailbox quota|quota|disk space)|mailbox (size )?limit|OverQuota",
            r"mailbox exceeds allowed size",
            r"extended quota violation|blocks limit exceeded",
        ),
        sources="Gmail SMTP errors and codes; KumoMTA bounces.toml; web.de; Apple iCloud",
    ),
    Row(
        topic="disabled_mailbox", stages=NAMED,
        says=(
            r"(account|mailbox|user|recipient|address)\b.{0,70}\b(disabled|inactive|suspended|discontinued|closed|frozen"
            r"|blocked|deactivated|expired|not active|not activated)|no longer (valid|active|available|in use)\b",
            r"disabled (recipient|user|mailbox)|DisabledUser|AccountDisabled|inactive (e-?mail|account|user|mailbox)",
            r"recipient is blocked|compte .{0,30}bloqu",
        ),
        sources="Gmail SMTP errors and codes; Yahoo Sender Hub; KumoMTA bounces.toml; Exchange Online NDR table",
    ),
    Row(topic="moved", stages=NAMED, says=(r"no longer (on|at) (this )?(server|domain|company)|has moved|moved away",),
        sources="Apple iCloud; RFC 5321"),
    Row(topic="unknown_address", stages=NAMED, codes="5xx", enhanced="x.1.* x.4.1 x.7.504",
        says=("recipient address rejected: access denied",), sources="Exchange Online NDR table"),
    Row(topic="closed_to_us", stages=NAMED, says=("recipient address rejected: access denied",),
        sources="Postfix smtpd_check.c: any rule of the relay's, for one recipient or for all"),
    Row(
        topic="unknown_address", stages=NAMED,
        says=(
            r"(unknown|invalid|no such|unrecogni[sz]ed|undeliverable|illegal|nonexistent|non-existent) "
            r"(local )?(user|recipient|mail ?box|mail-box|address|account|alias|id\b|person)",
            r"(user|recipient|mail ?box|mail-box|addressee|account|address|alias|local part)\b[^.;]{0,60}"
            r"\b(unknown|not found|not known|invalid|unrecogni[sz]ed|n[o']t exist|n[o']t a valid|is not valid"
            r"|reserved by)",
            r"not listed in (domino directory|public name)|invalid final delivery userid",
            r"user doesn't have|not a (valid|known) (user|recipient|mailbox|address)|not our customer|exrecipnotfound",
            r"no (mail.?box|user|account) (here|available|by that name|found)|(nobody|no one) (here )?by that name",
            r"recipient (address )?rejected: (user|domain|undeliverable|unverified)",
            r"(account|user|address) that you tried to reach does not exist",
            r"mailbox does not exist|cannot deliver mail for",
            r"utilisateur inconnu|destinat\w+ (sconosciuto|inconnu|desconocid)|unbekannt|nie istnieje",
            r"unrouteable address|domain not (found|handled|hosted)",
            r"recipient .{0,30}null mx|tenant or domain not found",
            r"address (is )?(unknown|invalid)\b|address rejected\W*$|banned recipient|null mx",
        ),
        sources="Postfix smtpd_check.c; Exim configure.default; KumoMTA bounces.toml; "
        "zone-mta bounces.txt; Yahoo; Exchange",
    ),
    # -- the message's size and form, the server's state --------------------------------------------------------
    Row(
        topic="too_large", stages=MESSAGE, codes="5xx",
        says=(r"(message|size|mail|attachment|header)\b[^.;]{0,60}\b(too (large|big|long)|exceeds?|ridiculously)",
              r"exceed(s|ed) [\w' ]*(size|limit of limit)|line (length|limit)"),
        sources="Postfix smtpd.c; Exim receive.c; Gmail SMTP errors and codes; Postal",
    ),
    Row(
        topic="malformed", stages=MESSAGE, codes="5xx",
        says=(r"not RFC|RFC ?(2822|5322|822)|malformed|header (error|syntax|not)|headers? (in|are)|bare (lf|line)"
              r"|invalid characters|multiple (addresses|subject)|duplicate header|message-id: header",),
        sources="Gmail SMTP errors and codes; Exchange Online NDR table; Yahoo; Exim configure.default",
    ),
    Row(topic="policy", stages=NAMED, codes="550-554",
        says=(r"\bpolic(y|ies)\b|\[PH01\]|Mail rejete|administrative(ly)? prohibit|access (is )?denied"
              r"|\b(message|mail|e-mail) (was |is )?(denied|refused|rejected|not accepted|not allowed)\b"
              r"|\b(block(ed|ing)?|banned|spam|junk|abuse|unsolicited|reputation)\b",),
        sources="Yahoo Sender Hub; Gmail SMTP errors and codes; GMX; Mimecast; Orange"),
    Row(topic="misrouted", stages=MESSAGE, codes="5xx",
        says=(r"(mail|routing) ?loop|loop detected|too many (hops|\"?received)|hop count|internal error|DNS error"
              r"|system (incorrectly )?(configured|error)|RTR:GE",),
        sources="Exim receive.c; Exchange Online NDR table; KumoMTA bounces.toml; zone-mta bounces.txt"),
)  # fmt: skip
