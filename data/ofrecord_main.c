/*
 * tutti-ofrecord: packs, shows and checks OFRecord files.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/ofrecord.h"
#include "data/ofrecord_pack.h"

#define PATH_BYTES  4096
#define SHOWN       8 /* values of a feature */
#define SHOWN_KEY   64
#define MOST_PARTS  100000
#define MOST_DIGITS 18

static const char usage[] =
    "tutti-ofrecord: files of OFRecord, OneFlow's format of data sets\n\n"
    "  tutti-ofrecord pack --from mnist|cifar10|cifar100 --data DIR --out DIR [options]\n"
    "      writes the samples of a data set, in their order, into files part-0, part-1 ... of the folder --out\n"
    "        --parts N          how many files (default: 1)\n"
    "        --test             the test samples instead of the training samples\n"
    "        --prefix TEXT      before the number in the files' names (default: part-)\n"
    "        --suffix-length N  digits of the number, filled up with zeros (default: as needed)\n"
    "        --bytes            pixels as bytes; default: as floats from 0 to 1\n"
    "        --image NAME       feature of the image, height x width x channels (default: img_raw)\n"
    "        --label NAME       feature of the label, one int32 (default: label)\n\n"
    "  tutti-ofrecord show FILE [N]\n"
    "      prints the first N records (default: 1): each feature, its kind, how many values, the first of them\n\n"
    "  tutti-ofrecord check FILE|DIR...\n"
    "      reads every record of these files, or of all files in a folder; reports file, offset and record of "
    "damage;\n      reports which records have other features than the first one of the file or folder, which the "
    "format "
    "allows\n";

static int fail(void) {
    fprintf(stderr, "tutti-ofrecord: %s\n", tutti_last_error());
    return 1;
}

/* ------------------------------------------------------------------------------------------------- pack */

typedef struct pack_options {
    tutti_ofrecord_pack pack;
    const char *from, *data;
    bool test;
} pack_options;

static tutti_status read_count(const char *name, const char *text, int least, int most, int *count_out) {
    char *end;
    errno = 0;
    long count = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || count < least || count > most)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s %s: expected a whole number from %d to %d", name, text, least, most);
    *count_out = (int)count;
    return TUTTI_OK;
}

static tutti_status read_pack(int argc, char **argv, pack_options *options) {
    const struct {
        const char *name, **value;
    } texts[] = {{"--from", &options->from},        {"--data", &options->data},
                 {"--out", &options->pack.folder},  {"--prefix", &options->pack.prefix},
                 {"--image", &options->pack.image}, {"--label", &options->pack.label}};
    const size_t ntexts = sizeof texts / sizeof texts[0];
    for (int i = 0; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        size_t row = 0;
        if (strcmp(name, "--bytes") == 0) options->pack.bytes = true;
        else if (strcmp(name, "--test") == 0) options->test = true;
        else {
            while (row < ntexts && strcmp(texts[row].name, name) != 0) row++;
            bool parts = strcmp(name, "--parts") == 0, digits = strcmp(name, "--suffix-length") == 0;
            if (row == ntexts && !parts && !digits)
                return tutti_fail(TUTTI_ERR_CONFIG, "pack: unknown option %s (--help lists all)", name);
            if (value == NULL || value[0] == '\0') return tutti_fail(TUTTI_ERR_CONFIG, "pack: %s needs a value", name);
            if (parts) TUTTI_TRY(read_count(name, value, 1, MOST_PARTS, &options->pack.parts));
            else if (digits) TUTTI_TRY(read_count(name, value, -1, MOST_DIGITS, &options->pack.digits));
            else *texts[row].value = value;
            i++;
        }
    }
    if (options->from == NULL || options->data == NULL || options->pack.folder == NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "pack: --from, --data and --out are needed (--help says more)");
    return TUTTI_OK;
}

static tutti_status open_source(const pack_options *options, tutti_data_source **source_out) {
    const tutti_data_part part = options->test ? TUTTI_DATA_TEST : TUTTI_DATA_TRAIN;
    if (strcmp(options->from, "mnist") == 0) return tutti_data_open_mnist(options->data, part, source_out);
    if (strcmp(options->from, "cifar10") == 0) return tutti_data_open_cifar10(options->data, part, source_out);
    if (strcmp(options->from, "cifar100") == 0)
        return tutti_data_open_cifar100(options->data, part, TUTTI_DATA_FINE, source_out);
    return tutti_fail(TUTTI_ERR_CONFIG, "--from %s: expected mnist, cifar10 or cifar100", options->from);
}

static int run_pack(int argc, char **argv) {
    pack_options options = {.pack = {.prefix = "part-", .parts = 1, .image = "img_raw", .label = "label"}};
    tutti_data_source *source = NULL;
    tutti_data_source_details about;
    if (read_pack(argc, argv, &options) != TUTTI_OK || open_source(&options, &source) != TUTTI_OK) return fail();
    tutti_status status = tutti_ofrecord_pack_source(source, &options.pack);
    if (status == TUTTI_OK && tutti_data_source_get(source, &about) == TUTTI_OK)
        printf("%lld samples in %d files in %s: %s:%d,%d,%d:%s and %s:1:int32\n", (long long)about.count,
               options.pack.parts, options.pack.folder, options.pack.image, about.height, about.width, about.channels,
               options.pack.bytes ? "uint8" : "float32", options.pack.label);
    tutti_data_source_destroy(source);
    return status == TUTTI_OK ? 0 : fail();
}

/* ------------------------------------------------------------------------------------------------- show */

static void print_text(tutti_ofrecord_span text, size_t most) {
    for (size_t i = 0; i < text.bytes && i < most; i++) putchar(isprint(text.data[i]) ? text.data[i] : '?');
    if (text.bytes > most) fputs("...", stdout);
}

static tutti_status show_entry(tutti_ofrecord_span record, tutti_ofrecord_span entry, tutti_ofrecord_span key) {
    double reals[SHOWN];
    int64_t integers[SHOWN];
    tutti_ofrecord_values values = {.capacity = SHOWN, .reals = reals, .integers = integers};
    TUTTI_TRY(tutti_ofrecord_read_entry(record, entry, &values));
    fputs("  ", stdout);
    print_text(key, SHOWN_KEY);
    printf(": %s", tutti_ofrecord_kind_name(values.kind));
    if (values.kind != TUTTI_OFRECORD_NONE) printf(" of %zu", values.count);
    size_t shown = values.count < SHOWN ? values.count : SHOWN;
    if (values.kind == TUTTI_OFRECORD_BYTES) {
        size_t bytes = values.count > 0 ? values.bytes.bytes : 0;
        printf(", %zu bytes:", bytes);
        for (size_t i = 0; i < bytes && i < SHOWN; i++) printf(" %u", values.bytes.data[i]);
        if (bytes > SHOWN) fputs(" ...", stdout);
        shown = 0;
    } else if (shown > 0) putchar(':');
    for (size_t i = 0; i < shown; i++)
        if (values.kind <= TUTTI_OFRECORD_DOUBLE) printf(" %.9g", reals[i]);
        else printf(" %lld", (long long)integers[i]);
    puts(shown > 0 && values.count > SHOWN ? " ..." : "");
    return TUTTI_OK;
}

static tutti_status show_record(tutti_ofrecord_span record) {
    for (size_t at = 0;;) {
        tutti_ofrecord_span entry, key;
        TUTTI_TRY(tutti_ofrecord_next(record, &at, &entry, &key));
        if (entry.data == NULL) return TUTTI_OK;
        TUTTI_TRY(show_entry(record, entry, key));
    }
}

static int run_show(int argc, char **argv) {
    tutti_ofrecord_file file;
    int most = 1;
    if (argc < 1 || argc > 2) {
        tutti_fail(TUTTI_ERR_CONFIG, "show: a file is needed, and perhaps a number of records (--help says more)");
        return fail();
    }
    if (argc == 2 && read_count("show", argv[1], 1, 1 << 30, &most) != TUTTI_OK) return fail();
    if (tutti_ofrecord_file_open(argv[0], &file) != TUTTI_OK) return fail();
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < most && status == TUTTI_OK; i++) {
        tutti_ofrecord_span record;
        const int64_t offset = file.offset;
        status = tutti_ofrecord_file_next(&file, &record);
        if (status != TUTTI_OK || record.data == NULL) break;
        printf("record %d at offset %lld, %zu bytes\n", i, (long long)offset, record.bytes);
        status = show_record(record);
        file.record--;
        if (status != TUTTI_OK) status = tutti_ofrecord_file_blame(&file, status, offset);
        file.record++;
    }
    fflush(stdout);
    tutti_ofrecord_file_close(&file);
    return status == TUTTI_OK ? 0 : fail();
}

/* ------------------------------------------------------------------------------------------------ check */

/* Continues after a damaged record if its length is valid, so that all damaged records are reported. Of the records
 * whose features differ from the first one's, only the first is reported: if all differ, that is intended. */
static int check_file(const char *path, tutti_ofrecord_features *first) {
    tutti_ofrecord_file file;
    int failures = 0;
    long long others = 0;
    if (tutti_ofrecord_file_open(path, &file) != TUTTI_OK) return fail();
    for (;;) {
        tutti_ofrecord_span record;
        const int64_t offset = file.offset;
        if (tutti_ofrecord_file_next(&file, &record) != TUTTI_OK) {
            failures += fail();
            break;
        }
        if (record.data == NULL) break;
        char unlike[256];
        tutti_status status = tutti_ofrecord_compare(record, first, unlike, sizeof unlike);
        if (unlike[0] != '\0' && others++ == 0)
            fprintf(stderr, "tutti-ofrecord: note: %s: record %lld at offset %lld: %s\n", path,
                    (long long)file.record - 1, (long long)offset, unlike);
        if (status == TUTTI_OK) continue;
        file.record--;
        (void)tutti_ofrecord_file_blame(&file, status, offset);
        file.record++;
        failures += fail();
    }
    printf("%s: %lld records, %lld bytes", path, (long long)file.record, (long long)file.bytes);
    if (others > 0) printf(", %lld with other features than the first one", others);
    printf("%s\n", failures > 0 ? ", DAMAGED" : "");
    tutti_ofrecord_file_close(&file);
    return failures;
}

static int is_seen(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int check_folder(const char *folder) {
    struct dirent **entries;
    tutti_ofrecord_features first = {.all = NULL};
    int failures = 0, files = 0, count = scandir(folder, &entries, is_seen, versionsort);
    if (count < 0) {
        tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", folder, strerror(errno));
        return fail();
    }
    for (int i = 0; i < count; i++) {
        char path[PATH_BYTES];
        struct stat about;
        bool fits = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < PATH_BYTES;
        if (fits && stat(path, &about) == 0 && S_ISREG(about.st_mode)) failures += check_file(path, &first), files++;
        free(entries[i]);
    }
    free(entries);
    tutti_ofrecord_features_free(&first);
    if (files > 0) return failures;
    tutti_fail(TUTTI_ERR_CONFIG, "%s: no files in it", folder);
    return fail();
}

static int run_check(int argc, char **argv) {
    int failures = 0;
    if (argc < 1) {
        tutti_fail(TUTTI_ERR_CONFIG, "check: files or folders are needed (--help says more)");
        return fail();
    }
    for (int i = 0; i < argc; i++) {
        struct stat about;
        bool folder = stat(argv[i], &about) == 0 && S_ISDIR(about.st_mode);
        tutti_ofrecord_features first = {.all = NULL};
        failures += folder ? check_folder(argv[i]) : check_file(argv[i], &first);
        tutti_ofrecord_features_free(&first);
    }
    return failures > 0;
}

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "pack") == 0) return run_pack(argc - 2, argv + 2);
    if (strcmp(verb, "show") == 0) return run_show(argc - 2, argv + 2);
    if (strcmp(verb, "check") == 0) return run_check(argc - 2, argv + 2);
    bool help = strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0;
    if (help || verb[0] == '\0') {
        fputs(usage, help ? stdout : stderr);
        return help ? 0 : 1;
    }
    tutti_fail(TUTTI_ERR_CONFIG, "%s: expected pack, show or check (--help says more)", verb);
    return fail();
}
