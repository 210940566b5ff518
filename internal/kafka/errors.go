package kafka

// errorCode turns an error of any package below into Kafka's code and a
// message for the client. It is the only place that chooses codes.
func errorCode(err error) (code int16, message *string) {
	if err == nil {
		return 0, nil
	}
	text := err.Error()
	return -1, &text
}
