"""Files of effects: report parts and artifacts, attachments. A local folder, or S3-compatible object storage."""
