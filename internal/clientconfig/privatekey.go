package clientconfig

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
)

// errKeyPassword marks faults that the operator repairs at ssl.key.password.
var errKeyPassword = errors.New("private key is encrypted")

// keyOf chooses the property that an error of parsePrivateKey is about.
func keyOf(err error, otherwise string) string {
	if errors.Is(err, errKeyPassword) {
		return keyKeyPassword
	}
	return otherwise
}

// parsePrivateKey reads the first private key of a PEM text: PKCS#8, also
// encrypted, and the older PKCS#1 and SEC 1 forms.
func parsePrivateKey(text []byte, password Secret) (crypto.Signer, error) {
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			return nil, errors.New("holds no private key in PEM form")
		}
		der := block.Bytes
		switch block.Type {
		case "RSA PRIVATE KEY":
			if block.Headers["DEK-Info"] != "" {
				return nil, errors.New("holds a key in openssl's old encryption; convert it with: openssl pkcs8 -topk8")
			}
			key, err := x509.ParsePKCS1PrivateKey(der)
			return key, err
		case "EC PRIVATE KEY":
			key, err := x509.ParseECPrivateKey(der)
			return key, err
		case "ENCRYPTED PRIVATE KEY":
			if password == "" {
				return nil, fmt.Errorf("%w, and ssl.key.password is not set", errKeyPassword)
			}
			var err error
			if der, err = decryptPKCS8(der, password); err != nil {
				return nil, err
			}
		case "PRIVATE KEY":
		default:
			continue
		}
		return parsePKCS8(der, block.Type == "ENCRYPTED PRIVATE KEY")
	}
}

func parsePKCS8(der []byte, decrypted bool) (crypto.Signer, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		if decrypted {
			return nil, fmt.Errorf("%w with another password", errKeyPassword)
		}
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}

// The structures of PKCS#5 v2 (RFC 8018): what openssl and Java write today.
type (
	encryptedKey struct {
		Algorithm pkix.AlgorithmIdentifier
		Data      []byte
	}
	pbes2Params struct {
		KeyDerivation pkix.AlgorithmIdentifier
		Encryption    pkix.AlgorithmIdentifier
	}
	pbkdf2Params struct {
		Salt       []byte
		Iterations int
		KeyLength  int                      `asn1:"optional"`
		PRF        pkix.AlgorithmIdentifier `asn1:"optional"`
	}
)

var (
	oidPBES2  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}
	oidPBKDF2 = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}

	prfs = map[string]func() hash.Hash{
		"":                    sha1.New, // the default of the standard
		"1.2.840.113549.2.7":  sha1.New,
		"1.2.840.113549.2.9":  sha256.New,
		"1.2.840.113549.2.11": sha512.New,
	}
	ciphers = map[string]struct {
		keyBytes int
		block    func([]byte) (cipher.Block, error)
	}{
		"2.16.840.1.101.3.4.1.2":  {16, aes.NewCipher},
		"2.16.840.1.101.3.4.1.22": {24, aes.NewCipher},
		"2.16.840.1.101.3.4.1.42": {32, aes.NewCipher},
		"1.2.840.113549.3.7":      {24, des.NewTripleDESCipher},
	}
)

// maxIterations bounds the work a key file can ask for (about ten seconds).
const maxIterations = 10_000_000

func unsupportedEncryption(what string, oid asn1.ObjectIdentifier) error {
	return fmt.Errorf("holds a key with %s %v, which is not supported; convert it with: openssl pkcs8 -topk8 -v2 aes256", what, oid)
}

func decryptPKCS8(der []byte, password Secret) ([]byte, error) {
	var outer encryptedKey
	if _, err := asn1.Unmarshal(der, &outer); err != nil {
		return nil, fmt.Errorf("encrypted key: %w", err)
	}
	if !outer.Algorithm.Algorithm.Equal(oidPBES2) {
		return nil, unsupportedEncryption("encryption", outer.Algorithm.Algorithm)
	}
	var scheme pbes2Params
	if _, err := asn1.Unmarshal(outer.Algorithm.Parameters.FullBytes, &scheme); err != nil {
		return nil, fmt.Errorf("encrypted key: %w", err)
	}
	if !scheme.KeyDerivation.Algorithm.Equal(oidPBKDF2) {
		return nil, unsupportedEncryption("key derivation", scheme.KeyDerivation.Algorithm)
	}
	var kdf pbkdf2Params
	if _, err := asn1.Unmarshal(scheme.KeyDerivation.Parameters.FullBytes, &kdf); err != nil {
		return nil, fmt.Errorf("encrypted key: %w", err)
	}
	prf, ok := prfs[kdf.PRF.Algorithm.String()]
	if !ok {
		return nil, unsupportedEncryption("hash", kdf.PRF.Algorithm)
	}
	alg, ok := ciphers[scheme.Encryption.Algorithm.String()]
	if !ok {
		return nil, unsupportedEncryption("cipher", scheme.Encryption.Algorithm)
	}
	if kdf.Iterations < 1 || kdf.Iterations > maxIterations {
		return nil, fmt.Errorf("encrypted key: %d iterations", kdf.Iterations)
	}
	key, err := pbkdf2.Key(prf, password.Reveal(), kdf.Salt, kdf.Iterations, alg.keyBytes)
	if err != nil {
		return nil, fmt.Errorf("encrypted key: %w", err)
	}
	block, err := alg.block(key)
	if err != nil {
		return nil, fmt.Errorf("encrypted key: %w", err)
	}
	return decryptCBC(block, scheme.Encryption.Parameters, outer.Data)
}

func decryptCBC(block cipher.Block, params asn1.RawValue, data []byte) ([]byte, error) {
	var iv []byte
	if _, err := asn1.Unmarshal(params.FullBytes, &iv); err != nil || len(iv) != block.BlockSize() {
		return nil, errors.New("encrypted key: bad initialisation vector")
	}
	if len(data) == 0 || len(data)%block.BlockSize() != 0 {
		return nil, errors.New("encrypted key: length is not a multiple of the block size")
	}
	plain := make([]byte, len(data))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(plain, data)
	pad := int(plain[len(plain)-1])
	if pad < 1 || pad > block.BlockSize() {
		return nil, fmt.Errorf("%w with another password", errKeyPassword)
	}
	return plain[:len(plain)-pad], nil
}
