// Package controller is the only writer of cluster metadata.
package controller
