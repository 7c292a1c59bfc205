// amqplib as its users use it, one function per thing to see; test_amqplib.py calls them by name.
//
//   node amqplib_client.cjs URL NAME_START FUNCTION

"use strict";

const assert = require("node:assert/strict");
const readline = require("node:readline");
const amqplib = require("amqplib");

const [url, start, wanted] = process.argv.slice(2);
let connection;
let names = 0;
const fresh = (kind = "q") => `${start}-${kind}-${names++}`;

/** So many messages, each acknowledged. */
async function take(channel, queue, count, options = {}) {
  const found = [];
  let tag;
  await new Promise((resolve) => {
    channel
      .consume(
        queue,
        (message) => {
          if (message === null || found.length === count) return;
          found.push(message);
          channel.ack(message);
          if (found.length === count) resolve();
        },
        options,
      )
      .then((reply) => {
        tag = reply.consumerTag;
      });
  });
  await channel.cancel(tag);
  return found;
}

const bodies = (messages) => messages.map((message) => message.content.toString());

/** A channel whose errors are collected instead of thrown. */
async function failing() {
  const channel = await connection.createChannel();
  const closed = new Promise((resolve) => channel.once("error", resolve));
  return [channel, closed];
}

const scenarios = {
  async publishes_with_confirms_and_consumes() {
    const channel = await connection.createConfirmChannel();
    const queue = fresh();
    assert.equal((await channel.assertQueue(queue, { durable: true })).queue, queue);
    const headers = { text: "ü", small: 5, large: 2 ** 40, list: [1, { deep: null }], real: 1.5, flag: true };
    for (let number = 0; number < 50; number++) {
      channel.sendToQueue(queue, Buffer.from(`${number}`), { persistent: true, headers, messageId: `m${number}` });
    }
    await channel.waitForConfirms();
    assert.equal((await channel.checkQueue(queue)).messageCount, 50);
    const found = await take(channel, queue, 50);
    assert.deepEqual(bodies(found), [...Array(50).keys()].map(String));
    assert.deepEqual(found[0].properties.headers, headers);
    assert.equal(found[7].properties.messageId, "m7");
  },

  async limits_what_is_in_flight() {
    const channel = await connection.createConfirmChannel();
    const queue = fresh();
    await channel.assertQueue(queue);
    for (let number = 0; number < 10; number++) channel.sendToQueue(queue, Buffer.from(`${number}`));
    await channel.waitForConfirms();
    await channel.prefetch(3);
    const held = [];
    let arrived = () => {};
    const until = (count) =>
      new Promise((resolve) => {
        arrived = () => held.length >= count && resolve();
        arrived();
      });
    await channel.consume(queue, (message) => {
      held.push(message);
      arrived();
    });
    await until(3);
    assert.equal((await channel.checkQueue(queue)).messageCount, 7);
    channel.ack(held[2], true);
    await until(6);
    assert.deepEqual(bodies(held), ["0", "1", "2", "3", "4", "5"]);
  },

  async requeues_and_rejects_to_the_dead_letters() {
    const channel = await connection.createChannel();
    const [dead, queue, exchange] = [fresh("dead"), fresh(), fresh("dlx")];
    await channel.assertExchange(exchange, "fanout");
    await channel.assertQueue(dead);
    await channel.bindQueue(dead, exchange, "");
    await channel.assertQueue(queue, { deadLetterExchange: exchange });
    channel.sendToQueue(queue, Buffer.from("poison"));
    let message = false;
    while (message === false) message = await channel.get(queue);
    assert.equal(message.fields.redelivered, false);
    channel.nack(message);
    do message = await channel.get(queue);
    while (message === false);
    assert.equal(message.fields.redelivered, true);
    channel.reject(message, false);
    const [letter] = await take(channel, dead, 1);
    assert.equal(letter.fields.exchange, exchange);
    const [death] = letter.properties.headers["x-death"];
    assert.deepEqual([death.queue, death.reason, death.count], [queue, "rejected", 1]);
  },

  async lets_messages_expire() {
    const channel = await connection.createChannel();
    const [dead, queue] = [fresh("dead"), fresh()];
    await channel.assertQueue(dead);
    await channel.assertQueue(queue, { messageTtl: 100, deadLetterExchange: "", deadLetterRoutingKey: dead });
    channel.sendToQueue(queue, Buffer.from("late"));
    const [letter] = await take(channel, dead, 1);
    assert.equal(letter.properties.headers["x-first-death-reason"], "expired");
  },

  async puts_higher_priorities_first() {
    const channel = await connection.createConfirmChannel();
    const queue = fresh();
    await channel.assertQueue(queue, { maxPriority: 10 });
    for (const priority of [1, 9, 5]) channel.sendToQueue(queue, Buffer.from(`${priority}`), { priority });
    await channel.waitForConfirms();
    assert.deepEqual(bodies(await take(channel, queue, 3)), ["9", "5", "1"]);
  },

  async chooses_by_topic_and_headers() {
    const channel = await connection.createConfirmChannel();
    const [queue, topic, headers] = [fresh(), fresh("topic"), fresh("headers")];
    await channel.assertQueue(queue);
    await channel.assertExchange(topic, "topic");
    await channel.assertExchange(headers, "headers");
    await channel.bindQueue(queue, topic, "orders.*");
    await channel.bindQueue(queue, headers, "", { "x-match": "all", size: 5 });
    const returned = [];
    channel.on("return", (message) => returned.push(message.content.toString()));
    channel.publish(topic, "orders.eu", Buffer.from("1"), { mandatory: true });
    channel.publish(headers, "", Buffer.from("2"), { mandatory: true, headers: { size: 5 } });
    channel.publish(topic, "invoices", Buffer.from("3"), { mandatory: true });
    channel.publish(headers, "", Buffer.from("4"), { mandatory: true, headers: { size: 6 } });
    await channel.waitForConfirms();
    assert.deepEqual(returned, ["3", "4"]);
    assert.deepEqual(bodies(await take(channel, queue, 2)), ["1", "2"]);
  },

  async is_told_what_is_wrong() {
    const queue = fresh();
    await (await connection.createChannel()).assertQueue(queue, { durable: false });
    let [channel, closed] = await failing();
    channel.assertQueue(queue, { durable: true }).catch(() => {});
    assert.match((await closed).message, /406 \(PRECONDITION-FAILED\).*inequivalent arg 'durable' for queue/);
    [channel, closed] = await failing();
    channel.checkQueue("nowhere").catch(() => {});
    assert.match((await closed).message, /404 \(NOT-FOUND\).*no queue 'nowhere' in vhost '\/'/);
    [channel, closed] = await failing();
    channel.publish("nowhere", "key", Buffer.from("x"));
    assert.match((await closed).message, /no exchange 'nowhere' in vhost '\/'/);
    // The connection is unhurt.
    await (await connection.createChannel()).checkQueue(queue);
  },

  async hears_of_a_full_queue() {
    const channel = await connection.createConfirmChannel();
    const queue = fresh();
    await channel.assertQueue(queue, { maxLength: 1, arguments: { "x-overflow": "reject-publish" } });
    const outcomes = [1, 2].map(
      (number) =>
        new Promise((resolve) => {
          channel.sendToQueue(queue, Buffer.from(`${number}`), {}, (error) => resolve(error === null));
        }),
    );
    assert.deepEqual(await Promise.all(outcomes), [true, false]);
  },

  async hears_of_a_deleted_queue() {
    const channel = await connection.createChannel();
    const queue = fresh();
    await channel.assertQueue(queue);
    let cancelled;
    const heard = new Promise((resolve) => {
      cancelled = resolve;
    });
    await channel.consume(queue, (message) => message === null && cancelled());
    await (await connection.createChannel()).deleteQueue(queue);
    await heard;
  },

  /** Says "ready", waits for "restarted" and connects again. */
  async connects_again() {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue("lasting", { durable: true });
    channel.sendToQueue("lasting", Buffer.from("before"), { persistent: true });
    await channel.waitForConfirms();
    connection.on("error", () => {});
    const ended = new Promise((resolve) => connection.once("close", resolve));
    console.log("ready");
    await ended;
    const lines = readline.createInterface({ input: process.stdin });
    await new Promise((resolve) => lines.once("line", resolve));
    lines.close();
    connection = await amqplib.connect(url);
    const again = await connection.createConfirmChannel();
    again.sendToQueue("lasting", Buffer.from("after"), { persistent: true });
    await again.waitForConfirms();
    assert.deepEqual(bodies(await take(again, "lasting", 2)), ["before", "after"]);
  },
};

async function main() {
  connection = await amqplib.connect(url);
  await scenarios[wanted]();
  await connection.close();
}

main().then(
  () => console.log("done"),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
