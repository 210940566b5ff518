// Package clientconfig turns Kafka client properties, as operators already have
// them for other clients, into what Go needs to reach a cluster: addresses, a
// TLS configuration and a SASL mechanism.
//
// In goes a map of strings: a mirror's configs or a command's properties file.
// Out comes a [Config], which makes a [wire.Dialer] for our own client and
// options for franz-go. Nothing is dialled here; the only files read are the
// ones that the properties name.
//
// What may fail: every fault is a [*KeyError], which names the key and never
// its value when the key holds a secret. Keys that exist only for a JVM
// (security providers, key manager algorithms, class names) become warnings;
// unknown keys are errors unless the caller allows them.
//
// What is refused, with the command that helps: JKS stores, GSSAPI and
// OAUTHBEARER.
package clientconfig
