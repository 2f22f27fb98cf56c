/*
 * SHA-256 and HMAC-SHA-256 against the vectors of FIPS 180-4 and RFC 4231, in one piece and in many.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/hmac.h"

static const char *hex(const uint8_t digest[TUTTI_SHA256_BYTES]) {
    static char text[2 * TUTTI_SHA256_BYTES + 1];
    for (int i = 0; i < TUTTI_SHA256_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return text;
}

Test(hmac, sha256_gives_the_digests_of_the_standard) {
    uint8_t digest[TUTTI_SHA256_BYTES];
    tutti_sha256 hash;
    tutti_sha256_init(&hash);
    tutti_sha256_final(&hash, digest);
    cr_assert_str_eq(hex(digest), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    tutti_sha256_init(&hash);
    tutti_sha256_update(&hash, "abc", 3);
    tutti_sha256_final(&hash, digest);
    cr_assert_str_eq(hex(digest), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    tutti_sha256_init(&hash);
    for (int i = 0; i < 100000; i++) tutti_sha256_update(&hash, "aaaaaaaaaa", 10);
    tutti_sha256_final(&hash, digest);
    cr_assert_str_eq(hex(digest), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

Test(hmac, padding_is_right_around_a_blocks_end) {
    /* Hashes a message whole and byte by byte, at each length where the padding changes shape. */
    uint8_t message[200], whole[TUTTI_SHA256_BYTES], pieces[TUTTI_SHA256_BYTES];
    memset(message, 0x5a, sizeof message);
    for (size_t bytes = 50; bytes < sizeof message; bytes++) {
        tutti_sha256 a, b;
        tutti_sha256_init(&a);
        tutti_sha256_update(&a, message, bytes);
        tutti_sha256_final(&a, whole);
        tutti_sha256_init(&b);
        for (size_t i = 0; i < bytes; i++) tutti_sha256_update(&b, message + i, 1);
        tutti_sha256_final(&b, pieces);
        cr_assert_arr_eq(whole, pieces, sizeof whole, "%zu bytes", bytes);
    }
}

typedef struct vector {
    const char *name;
    int key_byte; /* -1: the key is the text `key` */
    size_t key_bytes;
    const char *key;
    int data_byte;
    size_t data_bytes;
    const char *data;
    const char *mac;
} vector;

static const vector vectors[] = {
    {"case 1", 0x0b, 20, NULL, -1, 0, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
    {"case 2", -1, 0, "Jefe", -1, 0, "what do ya want for nothing?",
     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
    {"case 3", 0xaa, 20, NULL, 0xdd, 50, NULL, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
    {"case 6", 0xaa, 131, NULL, -1, 0, "Test Using Larger Than Block-Size Key - Hash Key First",
     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    {"case 7", 0xaa, 131, NULL, -1, 0,
     "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be hashed "
     "before being used by the HMAC algorithm.",
     "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
};

Test(hmac, gives_the_codes_of_rfc_4231) {
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const vector *v = &vectors[i];
        uint8_t key[131], data[200], digest[TUTTI_SHA256_BYTES];
        size_t key_bytes = v->key_byte < 0 ? strlen(v->key) : v->key_bytes;
        size_t data_bytes = v->data_byte < 0 ? strlen(v->data) : v->data_bytes;
        if (v->key_byte < 0) memcpy(key, v->key, key_bytes);
        else memset(key, v->key_byte, key_bytes);
        if (v->data_byte < 0) memcpy(data, v->data, data_bytes);
        else memset(data, v->data_byte, data_bytes);
        tutti_hmac_of(key, key_bytes, data, data_bytes, digest);
        cr_assert_str_eq(hex(digest), v->mac, "%s: %s", v->name, hex(digest));
    }
}

Test(hmac, case_4_of_rfc_4231_in_pieces) {
    uint8_t key[25], data[50], digest[TUTTI_SHA256_BYTES];
    for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)(i + 1);
    memset(data, 0xcd, sizeof data);
    tutti_hmac mac;
    tutti_hmac_init(&mac, key, sizeof key);
    tutti_hmac_update(&mac, data, 7);
    tutti_hmac_update(&mac, data, 0);
    tutti_hmac_update(&mac, data, 43);
    tutti_hmac_final(&mac, digest);
    cr_assert_str_eq(hex(digest), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
}

Test(hmac, comparison_sees_any_one_bit) {
    uint8_t a[TUTTI_SHA256_BYTES] = {0}, b[TUTTI_SHA256_BYTES] = {0};
    cr_assert(tutti_hmac_equal(a, b, sizeof a));
    for (size_t bit = 0; bit < 8 * sizeof a; bit++) {
        b[bit / 8] = (uint8_t)(1u << bit % 8);
        cr_assert_not(tutti_hmac_equal(a, b, sizeof a), "bit %zu", bit);
        b[bit / 8] = 0;
    }
}
