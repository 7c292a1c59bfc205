// AWS's SDK for JavaScript, version 3, as a program has it. Takes the broker's address; prints what it saw as JSON.
import { createRequire } from "node:module";

const [endpoint, modules, name] = process.argv.slice(2);
const sdk = createRequire(`${modules}/`)("@aws-sdk/client-sqs");
const client = new sdk.SQSClient({
  endpoint,
  region: "us-east-1",
  credentials: { accessKeyId: "test", secretAccessKey: "test" },
  maxAttempts: 1,
});
const run = (command, input) => client.send(new sdk[`${command}Command`](input));
const seen = {};

const { QueueUrl } = await run("CreateQueue", { QueueName: name, Attributes: { FifoQueue: "true" }, tags: { a: "b" } });
seen.url = QueueUrl;
seen.tags = (await run("ListQueueTags", { QueueUrl })).Tags;
const sent = await run("SendMessage", {
  QueueUrl,
  MessageBody: "żółć 🎉",
  MessageGroupId: "g",
  MessageDeduplicationId: "1",
  MessageAttributes: {
    text: { DataType: "String", StringValue: "v" },
    bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
  },
});
const batch = await run("SendMessageBatch", {
  QueueUrl,
  Entries: [
    { Id: "a", MessageBody: "second", MessageGroupId: "g", MessageDeduplicationId: "2" },
    { Id: "b", MessageBody: "\u0000", MessageGroupId: "g", MessageDeduplicationId: "3" },
  ],
});
seen.batch = [batch.Successful.map((one) => one.Id), batch.Failed.map((one) => one.Code)];
const { Messages } = await run("ReceiveMessage", {
  QueueUrl,
  MaxNumberOfMessages: 10,
  WaitTimeSeconds: 5,
  MessageAttributeNames: ["All"],
  MessageSystemAttributeNames: ["All"],
});
seen.bodies = Messages.map((one) => one.Body);
seen.isSame = Messages[0].MessageId === sent.MessageId;
seen.bytes = Array.from(Messages[0].MessageAttributes.bytes.BinaryValue);
seen.group = Messages[0].Attributes.MessageGroupId;
await run("ChangeMessageVisibility", { QueueUrl, ReceiptHandle: Messages[1].ReceiptHandle, VisibilityTimeout: 60 });
const deleted = await run("DeleteMessageBatch", {
  QueueUrl,
  Entries: Messages.map((one, place) => ({ Id: `${place}`, ReceiptHandle: one.ReceiptHandle })),
});
seen.deleted = deleted.Successful.length;
seen.empty = (await run("ReceiveMessage", { QueueUrl })).Messages ?? null;
seen.attributes = (await run("GetQueueAttributes", { QueueUrl, AttributeNames: ["ApproximateNumberOfMessages"] })).Attributes;
await run("DeleteQueue", { QueueUrl });
try {
  await run("GetQueueUrl", { QueueName: name });
} catch (error) {
  seen.error = [error.name, error instanceof sdk.QueueDoesNotExist, error.$metadata.httpStatusCode];
}
console.log(JSON.stringify(seen));
