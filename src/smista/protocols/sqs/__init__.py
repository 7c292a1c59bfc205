"""Amazon SQS: requests of AWS's SDKs, answered by this broker. See docs/sqs.md."""
