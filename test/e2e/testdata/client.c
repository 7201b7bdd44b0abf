/* A client of libmosquitto that tries a hub: client VERSION HOST PORT PREFIX [CA [CERT KEY]].
 * VERSION is 3, 4 or 5. It prints what fails, or "done". */
#include <mosquitto.h>
#include <mqtt_protocol.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PACKET_MAX (1 << 20) /* the hub's default */
#define WAIT_S 20

static int version, port;
static const char *host, *prefix, *ca, *cert, *key;

static void fail(const char *format, ...) {
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	exit(1);
}

static void check(int rc, const char *what) {
	if (rc != MOSQ_ERR_SUCCESS) fail("%s: %s", what, mosquitto_strerror(rc));
}

/* client is a connection with the last thing that has come of each kind. */
struct client {
	struct mosquitto *m;
	bool up, down, present;
	int connack, reason; /* reason of DISCONNECT */
	int subacks, granted, published, puback;
	int messages, qos, len;
	bool retain;
	char *payload, *topic;
	char *content_type, *user_name, *user_value;
	uint32_t expiry;
};

static void on_connect(struct mosquitto *m, void *o, int rc, int flags, const mosquitto_property *p) {
	struct client *c = o;
	(void)m, (void)p;
	c->up = true, c->connack = rc, c->present = flags & 1;
}

static void on_disconnect(struct mosquitto *m, void *o, int rc, const mosquitto_property *p) {
	struct client *c = o;
	(void)m, (void)p;
	c->down = true, c->reason = rc;
}

static void on_subscribe(struct mosquitto *m, void *o, int mid, int n, const int *granted, const mosquitto_property *p) {
	struct client *c = o;
	(void)m, (void)mid, (void)n, (void)p;
	c->subacks++, c->granted = granted[0];
}

static void on_publish(struct mosquitto *m, void *o, int mid, int reason, const mosquitto_property *p) {
	struct client *c = o;
	(void)m, (void)mid, (void)p;
	c->published++, c->puback = reason;
}

static void on_message(struct mosquitto *m, void *o, const struct mosquitto_message *msg, const mosquitto_property *p) {
	struct client *c = o;
	(void)m;
	free(c->payload), free(c->topic), free(c->content_type), free(c->user_name), free(c->user_value);
	c->content_type = c->user_name = c->user_value = NULL, c->expiry = 0;
	c->payload = malloc(msg->payloadlen + 1);
	if (msg->payloadlen) memcpy(c->payload, msg->payload, msg->payloadlen);
	c->topic = strdup(msg->topic);
	c->messages++, c->qos = msg->qos, c->len = msg->payloadlen, c->retain = msg->retain;
	mosquitto_property_read_string(p, MQTT_PROP_CONTENT_TYPE, &c->content_type, false);
	mosquitto_property_read_string_pair(p, MQTT_PROP_USER_PROPERTY, &c->user_name, &c->user_value, false);
	mosquitto_property_read_int32(p, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, &c->expiry, false);
}

/* until runs the client, and a second one, until *n is at least want. */
static void until(struct client *a, struct client *b, const int *n, int want, const char *what) {
	for (time_t end = time(NULL) + WAIT_S; *n < want;) {
		if (time(NULL) > end) fail("%s did not come", what);
		mosquitto_loop(a->m, 10, 1);
		if (b) mosquitto_loop(b->m, 10, 1);
	}
}

static struct client *dial(const char *name, bool clean, const char *will) {
	struct client *c = calloc(1, sizeof *c);
	char id[200];
	snprintf(id, sizeof id, "%s-%s", prefix, name);
	if (!(c->m = mosquitto_new(id, clean, c))) fail("no memory");
	int protocol = version == 3 ? MQTT_PROTOCOL_V31 : version == 4 ? MQTT_PROTOCOL_V311 : MQTT_PROTOCOL_V5;
	check(mosquitto_int_option(c->m, MOSQ_OPT_PROTOCOL_VERSION, protocol), "version");
	mosquitto_connect_v5_callback_set(c->m, on_connect);
	mosquitto_disconnect_v5_callback_set(c->m, on_disconnect);
	mosquitto_subscribe_v5_callback_set(c->m, on_subscribe);
	mosquitto_publish_v5_callback_set(c->m, on_publish);
	mosquitto_message_v5_callback_set(c->m, on_message);
	if (ca) check(mosquitto_tls_set(c->m, ca, NULL, cert, key, NULL), "TLS");
	if (will) check(mosquitto_will_set(c->m, will, 4, "gone", 1, false), "will");
	mosquitto_property *props = NULL;
	if (version == 5 && !clean) check(mosquitto_property_add_int32(&props, MQTT_PROP_SESSION_EXPIRY_INTERVAL, 3600), "expiry");
	check(mosquitto_connect_bind_v5(c->m, host, port, 60, NULL, props), "connect");
	mosquitto_property_free_all(&props);
	int up = 0;
	for (time_t end = time(NULL) + WAIT_S; !up; up = c->up) {
		if (time(NULL) > end || c->down) fail("%s: not connected", name);
		mosquitto_loop(c->m, 10, 1);
	}
	if (c->connack) fail("%s: CONNACK %d", name, c->connack);
	return c;
}

static void bye(struct client *c) {
	check(mosquitto_disconnect(c->m), "disconnect");
	for (time_t end = time(NULL) + WAIT_S; !c->down && time(NULL) <= end;) mosquitto_loop(c->m, 10, 1);
	mosquitto_destroy(c->m);
	free(c);
}

static void subscribe(struct client *c, const char *filter, int qos) {
	int before = c->subacks;
	check(mosquitto_subscribe(c->m, NULL, filter, qos), "subscribe");
	until(c, NULL, &c->subacks, before + 1, "SUBACK");
	if (c->granted != qos) fail("granted %d", c->granted);
}

static void publish(struct client *c, struct client *other, const char *topic, const void *payload, int len, int qos, bool retain) {
	int before = c->published;
	check(mosquitto_publish(c->m, NULL, topic, len, payload, qos, retain), "publish");
	until(c, other, &c->published, before + 1, "the acknowledgement");
}

static void want(struct client *c, struct client *other, int n, const char *payload, int len, int qos, bool retain) {
	until(c, other, &c->messages, n, "a message");
	if (c->messages != n || c->len != len || memcmp(c->payload, payload, len) || c->qos != qos || c->retain != retain)
		fail("message %d of %d: %d bytes at QoS %d, retained %d; want %d at QoS %d", c->messages, n, c->len, c->qos, c->retain, len, qos);
}

static void both_ways(void) {
	char to_a[200], to_b[200];
	snprintf(to_a, sizeof to_a, "%s/to-a", prefix), snprintf(to_b, sizeof to_b, "%s/to-b", prefix);
	struct client *a = dial("a", true, NULL), *b = dial("b", true, NULL);
	subscribe(a, to_a, 2), subscribe(b, to_b, 2);
	int largest = PACKET_MAX - 5 - 2 - (int)strlen(to_a) - 2 - 1;
	char *payload = malloc(largest);
	for (int i = 0; i < largest; i++) payload[i] = 'a' + i % 26;
	int n = 0;
	for (int qos = 0; qos <= 2; qos++) {
		int sizes[] = {0, 3, largest};
		for (int i = 0; i < 3; i++) {
			n++;
			publish(a, b, to_b, payload, sizes[i], qos, false), want(b, a, n, payload, sizes[i], qos, false);
			publish(b, a, to_a, payload, sizes[i], qos, false), want(a, b, n, payload, sizes[i], qos, false);
		}
	}
	free(payload);
	bye(a), bye(b);
}

static void retained(void) {
	char topic[200];
	snprintf(topic, sizeof topic, "%s/retained", prefix);
	struct client *pub = dial("pub", true, NULL), *sub = dial("sub", true, NULL);
	publish(pub, NULL, topic, "kept", 4, 1, true);
	subscribe(sub, topic, 2), want(sub, NULL, 1, "kept", 4, 1, true);
	publish(pub, sub, topic, "", 0, 1, true), want(sub, pub, 2, "", 0, 1, false);
	bye(pub), bye(sub);
}

static void will(void) {
	char topic[200];
	snprintf(topic, sizeof topic, "%s/will", prefix);
	struct client *sub = dial("sub", true, NULL), *broken = dial("broken", true, topic);
	subscribe(sub, topic, 1);
	mosquitto_destroy(broken->m); /* closes without a goodbye */
	want(sub, NULL, 1, "gone", 4, 1, false);
	bye(sub);
}

static void session(void) {
	char topic[200];
	snprintf(topic, sizeof topic, "%s/missed", prefix);
	struct client *c = dial("kept", false, NULL), *pub = dial("pub", true, NULL);
	if (c->present) fail("a session before the first connection");
	subscribe(c, topic, 2), bye(c);
	for (int i = 0; i < 5; i++) publish(pub, NULL, topic, &"01234"[i], 1, 2, false);
	c = dial("kept", false, NULL);
	if (!c->present && version > 3) fail("the session is gone");
	until(c, NULL, &c->messages, 5, "what was missed");
	if (c->messages != 5 || c->payload[0] != '4') fail("%d messages, the last is %.1s", c->messages, c->payload);
	bye(c), bye(pub);
}

static void version5(void) {
	char topic[200];
	snprintf(topic, sizeof topic, "%s/props", prefix);
	struct client *c = dial("self", true, NULL);
	subscribe(c, topic, 1);
	mosquitto_property *props = NULL;
	check(mosquitto_property_add_string(&props, MQTT_PROP_CONTENT_TYPE, "text/plain"), "property");
	check(mosquitto_property_add_string_pair(&props, MQTT_PROP_USER_PROPERTY, "name", "value"), "property");
	check(mosquitto_property_add_int32(&props, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, 60), "property");
	check(mosquitto_publish_v5(c->m, NULL, topic, 1, "x", 1, false, props), "publish");
	mosquitto_property_free_all(&props);
	until(c, NULL, &c->published, 1, "the acknowledgement");
	want(c, NULL, 1, "x", 1, 1, false);
	if (!c->content_type || strcmp(c->content_type, "text/plain") || !c->user_name || strcmp(c->user_name, "name") ||
	    strcmp(c->user_value, "value") || !c->expiry || c->expiry > 60)
		fail("properties: %s, %s=%s, %u", c->content_type, c->user_name, c->user_value, c->expiry);
	publish(c, NULL, "$SYS/mine", "x", 1, 1, false);
	if (c->puback != MQTT_RC_NOT_AUTHORIZED) fail("$SYS: %d", c->puback);
	struct client *again = dial("self", true, NULL);
	for (time_t end = time(NULL) + WAIT_S; !c->down && time(NULL) <= end;) mosquitto_loop(c->m, 10, 1);
	if (c->reason != MQTT_RC_SESSION_TAKEN_OVER) fail("taken over with %d", c->reason);
	mosquitto_destroy(c->m);
	bye(again);
}

int main(int argc, char **argv) {
	if (argc < 5) fail("usage: client VERSION HOST PORT PREFIX [CA [CERT KEY]]");
	version = atoi(argv[1]), host = argv[2], port = atoi(argv[3]), prefix = argv[4];
	if (argc > 5) ca = argv[5];
	if (argc > 7) cert = argv[6], key = argv[7];
	mosquitto_lib_init();
	both_ways(), retained(), will(), session();
	if (version == 5) version5();
	mosquitto_lib_cleanup();
	printf("done\n");
	return 0;
}
