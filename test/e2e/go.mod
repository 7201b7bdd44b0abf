module edgehub/test/e2e

go 1.26.0

require (
	edgehub v0.0.0
	github.com/eclipse/paho.golang v0.23.0
	github.com/eclipse/paho.mqtt.golang v1.5.1
)

require (
	github.com/gorilla/websocket v1.5.3 // indirect
	golang.org/x/net v0.44.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
)

replace edgehub => ../..
