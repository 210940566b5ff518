// Package record looks at Kafka record batches of format v2 where they lie.
//
// A Batch is a slice of bytes that somebody else owns: a network buffer, a
// piece of a segment file, a fixture. Every accessor reads the fixed header in
// place; nothing is copied, nothing is decompressed, and nothing is allocated
// but by Build and its two friends, which make batches of our own (markers,
// coordinator records).
//
// What flows in: bytes with whole batches back to back. Next cuts off the
// first one after checking that its lengths lie within the bytes at hand. It
// does not check the CRC; VerifyCRC does, and every batch passes it once on
// its way into a log (D12).
//
// What flows out: header fields, the control type of a marker, and, for
// batches that are not compressed, the records.
//
// What may fail: ErrShort (more bytes are needed), *CorruptError (no number of
// further bytes will make this a batch), ErrCompressed (Records on a compressed
// batch). Hostile bytes never panic; fuzz targets hold that.
//
// The layout of the header, all integers big-endian:
//
//	 0 base offset           int64   not covered by the CRC
//	 8 length                int32   bytes behind this field
//	12 partition leader epoch int32  not covered by the CRC
//	16 magic                 int8    always 2
//	17 CRC-32C               uint32  of everything from 21 on
//	21 attributes            int16   codec 0-2, timestamp type 3, transactional 4, control 5, delete horizon 6
//	23 last offset delta     int32
//	27 base timestamp        int64
//	35 max timestamp         int64
//	43 producer id           int64
//	51 producer epoch        int16
//	53 base sequence         int32
//	57 number of records     int32
//	61 records
package record
