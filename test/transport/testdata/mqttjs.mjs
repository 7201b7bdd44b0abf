// Tries a hub: node mqttjs.mjs VERSION URL [CA [CERT KEY]]
import { readFileSync } from "node:fs";
import mqtt from "mqtt";

const [version, url, ca, cert, key] = process.argv.slice(2);
const v5 = version === "5";
const prefix = `js/${version}/${process.pid}`;

function fail(why) {
  console.error(why);
  process.exit(1);
}

// Client is a connection with the messages that have come and were not looked at.
class Client {
  static async dial(name, { clean = true, will } = {}) {
    const options = {
      protocolVersion: Number(version),
      protocolId: version === "3" ? "MQIsdp" : "MQTT",
      clientId: `js${version}-${process.pid}-${name}`,
      clean,
      will,
      reconnectPeriod: 0,
      connectTimeout: 20000,
      servername: "edge.test",
    };
    if (v5 && !clean) options.properties = { sessionExpiryInterval: 3600 };
    if (ca) options.ca = readFileSync(ca);
    if (cert) {
      options.cert = readFileSync(cert);
      options.key = readFileSync(key);
    }
    const c = new Client();
    c.inbox = [];
    c.m = mqtt.connect(url, options);
    c.m.on("message", (topic, payload, packet) => {
      c.inbox.push({ topic, payload, packet });
      c.wake?.();
    });
    c.m.on("disconnect", (packet) => (c.told = packet.reasonCode));
    await new Promise((resolve, reject) => {
      c.m.once("connect", (ack) => {
        c.present = ack.sessionPresent;
        resolve();
      });
      c.m.once("error", reject);
    });
    return c;
  }

  async next() {
    const late = setTimeout(() => fail("a message did not come"), 20000);
    while (this.inbox.length === 0) await new Promise((resolve) => (this.wake = resolve));
    clearTimeout(late);
    return this.inbox.shift();
  }

  async want(topic, payload, qos, retain = false) {
    const got = await this.next();
    if (got.topic !== topic || !Buffer.from(payload).equals(got.payload) || got.packet.qos !== qos || got.packet.retain !== retain) {
      fail(`${got.payload.length} bytes on ${got.topic} at QoS ${got.packet.qos}, retained ${got.packet.retain}; want ${payload.length} on ${topic} at QoS ${qos}, ${retain}`);
    }
    return got.packet;
  }
}

async function bothWays() {
  const a = await Client.dial("a");
  const b = await Client.dial("b");
  await a.m.subscribeAsync(`${prefix}/to-a`, { qos: 2 });
  await b.m.subscribeAsync(`${prefix}/to-b`, { qos: 2 });
  const largest = (1 << 20) - 5 - 2 - 2 - 1 - prefix.length - "/to-a".length;
  for (const qos of [0, 1, 2]) {
    for (const size of [0, 1, 20000, largest]) {
      const payload = Buffer.alloc(size, `${qos}${size}`);
      await a.m.publishAsync(`${prefix}/to-b`, payload, { qos });
      await b.want(`${prefix}/to-b`, payload, qos);
      await b.m.publishAsync(`${prefix}/to-a`, payload, { qos });
      await a.want(`${prefix}/to-a`, payload, qos);
    }
  }
  await a.m.endAsync();
  await b.m.endAsync();
}

async function retained() {
  const topic = `${prefix}/retained`;
  const pub = await Client.dial("pub");
  await pub.m.publishAsync(topic, "kept", { qos: 1, retain: true });
  const sub = await Client.dial("sub");
  await sub.m.subscribeAsync(topic, { qos: 2 });
  await sub.want(topic, "kept", 1, true);
  await pub.m.publishAsync(topic, "", { qos: 1, retain: true });
  await sub.want(topic, "", 1);
  await pub.m.endAsync();
  await sub.m.endAsync();
}

async function will() {
  const topic = `${prefix}/will`;
  const sub = await Client.dial("sub");
  await sub.m.subscribeAsync(topic, { qos: 1 });
  const broken = await Client.dial("broken", { will: { topic, payload: Buffer.from("gone"), qos: 1, retain: false } });
  broken.m.on("error", () => {});
  broken.m.stream.destroy();
  await sub.want(topic, "gone", 1);
  await sub.m.endAsync();
}

async function session() {
  const topic = `${prefix}/missed`;
  let c = await Client.dial("kept", { clean: false });
  if (c.present) fail("a session before the first connection");
  await c.m.subscribeAsync(topic, { qos: 1 });
  await c.m.endAsync();
  const pub = await Client.dial("pub");
  for (let i = 0; i < 10; i++) await pub.m.publishAsync(topic, `${i}`, { qos: 1 });
  c = await Client.dial("kept", { clean: false });
  if (!c.present && version !== "3") fail("the session is gone");
  for (let i = 0; i < 10; i++) await c.want(topic, `${i}`, 1);
  await c.m.endAsync();
  await pub.m.endAsync();
}

async function version5() {
  const topic = `${prefix}/props`;
  const c = await Client.dial("self");
  await c.m.subscribeAsync(topic, { qos: 1 });
  const sent = {
    contentType: "text/plain",
    responseTopic: `${prefix}/answer`,
    correlationData: Buffer.from([1, 0, 2]),
    messageExpiryInterval: 60,
    userProperties: { b: ["1", "3"], a: "2" },
  };
  await c.m.publishAsync(topic, "x", { qos: 1, properties: sent });
  const got = (await c.want(topic, "x", 1)).properties;
  for (const name of ["contentType", "responseTopic"]) {
    if (got[name] !== sent[name]) fail(`${name} is ${got[name]}`);
  }
  if (!sent.correlationData.equals(got.correlationData)) fail("another correlation");
  if (!(got.messageExpiryInterval > 0 && got.messageExpiryInterval <= 60)) fail(`expiry ${got.messageExpiryInterval}`);
  if (JSON.stringify(got.userProperties) !== JSON.stringify(sent.userProperties)) fail(`user properties ${JSON.stringify(got.userProperties)}`);
  let code = 0;
  await c.m.publishAsync("$SYS/mine", "x", { qos: 1 }).catch((e) => (code = e.code));
  if (code !== 0x87) fail(`$SYS was answered with ${code}`);
  const gone = new Promise((resolve) => c.m.once("close", resolve));
  const again = await Client.dial("self");
  await gone;
  if (c.told !== 0x8e) fail(`taken over with ${c.told}`);
  await again.m.endAsync();
}

await bothWays();
await retained();
await will();
await session();
if (v5) await version5();
console.log("done");
process.exit(0);
