// Publishes to itself: node mqttjs.mjs VERSION URL [CA [CERT KEY]]
import { readFileSync } from "node:fs";
import mqtt from "mqtt";

const [version, url, ca, cert, key] = process.argv.slice(2);
const options = {
  protocolVersion: Number(version),
  protocolId: version === "3" ? "MQIsdp" : "MQTT",
  clientId: `js${version}-${process.pid}`,
  reconnectPeriod: 0,
  connectTimeout: 20000,
  servername: "edge.test",
};
if (ca) options.ca = readFileSync(ca);
if (cert) {
  options.cert = readFileSync(cert);
  options.key = readFileSync(key);
}

const client = await mqtt.connectAsync(url, options);
const sizes = [0, 1, 100, 20000, 300000];
const wanted = [];
let finish;
const finished = new Promise((resolve) => (finish = resolve));
const topic = `js/${process.pid}`;
client.on("message", (name, payload) => {
  const want = wanted.shift();
  if (name !== topic || !want || !want.equals(payload)) {
    console.error(`unexpected ${payload.length} bytes on ${name}`);
    process.exit(1);
  }
  if (wanted.length === 0) finish();
});
await client.subscribeAsync(topic, { qos: 2 });
const published = [];
for (const qos of [0, 1, 2]) {
  for (const size of sizes) {
    const payload = Buffer.alloc(size, `${qos}${size}`);
    wanted.push(payload);
    published.push([payload, qos]);
  }
}
// One after the other: order holds within one quality of service only.
for (const [payload, qos] of published) {
  await client.publishAsync(topic, payload, { qos });
}
await finished;
await client.endAsync();
console.log("done");
