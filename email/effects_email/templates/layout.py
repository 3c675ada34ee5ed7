"""The page around a Markdown body: a column that fits a telephone, light or dark, in styles that mail programs keep.

An app has its own by a file `_markdown.html` in its folder of templates: HTML of Jinja2, with `content` (the body's
HTML), `subject`, `locale` and the variables of the context.
"""

LAYOUT_FILE = "_markdown.html"
LAYOUT = """\
<!doctype html>
<html{% if locale %} lang="{{ locale }}"{% endif %}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="supported-color-schemes" content="light dark">
<title>{{ subject }}</title>
<style>
body { margin: 0; padding: 0; background-color: #f4f4f5; color: #1f2328; -webkit-text-size-adjust: 100%; }
.page { max-width: 600px; margin: 0 auto; padding: 24px; background-color: #ffffff;
  font-family: -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; font-size: 16px; line-height: 1.5; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 16px; }
h2 { font-size: 20px; line-height: 1.25; margin: 24px 0 12px; }
h3, h4, h5, h6 { font-size: 16px; line-height: 1.25; margin: 24px 0 8px; }
p, ul, ol, pre, table, blockquote { margin: 0 0 16px; }
ul, ol { padding-left: 24px; }
a { color: #0b57d0; }
img { max-width: 100%; height: auto; border: 0; }
blockquote { padding-left: 12px; border-left: 4px solid #d0d7de; }
code { font-family: Menlo, Consolas, monospace; font-size: 14px; }
pre { padding: 12px; background-color: #f4f4f5; white-space: pre-wrap; word-wrap: break-word; }
table { border-collapse: collapse; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid #d0d7de; text-align: left; vertical-align: top; }
hr { height: 1px; margin: 24px 0; border: 0; background-color: #d0d7de; }
@media (prefers-color-scheme: dark) {
  body { background-color: #0d1117 !important; }
  .page { background-color: #161b22 !important; color: #e6edf3 !important; }
  a { color: #6cb6ff !important; }
  pre { background-color: #0d1117 !important; }
  blockquote, th, td { border-color: #444c56 !important; }
  hr { background-color: #444c56 !important; }
}
</style>
</head>
<body>
<div class="page">
{{ content }}</div>
</body>
</html>
"""
