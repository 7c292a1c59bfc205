"""The SQS door: what AWS's SDKs say to Amazon SQS, answered by this broker. See docs/sqs.md."""
