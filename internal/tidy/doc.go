// Package tidy has only tests: they hold ARCHITECTURE.md against the code, so
// that the drawing of the layers and the table of packages cannot rot.
package tidy
