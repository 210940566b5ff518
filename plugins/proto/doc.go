// Package proto holds the messages between a broker and its plugin processes,
// and the few constants that both must agree on. It imports nothing of
// Lockstep; plugins/sdk (the plugin's side) and plugins/host (the broker's)
// translate between these messages and the types of plugins/sdk.
//
// The connection is gRPC over a unix socket with one-time certificates in both
// directions. Only questions pass through it, never records.
//
// To generate: protoc 3.21, protoc-gen-go v1.36.11, protoc-gen-go-grpc v1.6.2.
package proto

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative plugin.proto
