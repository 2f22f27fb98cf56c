/*
 * The CPUs of each rank, as ranges of the topology's array; pure arithmetic.
 *
 * Shares of cores, hardware threads included, are cut from the array one after the other: neighbouring ranks are
 * neighbours in the machine, every core belongs to one rank, and no rank gets less than cores / ranks, rounded
 * down.
 *
 *     6 ranks, 2 caches of 8 cores    0 1 2 | 3 4 5 | 6 7 || 8 9 10 | 11 12 13 | 14 15    as even as the caches permit
 *     5 ranks                         0 1 2 3 | 4 5 6 | 7 || 8 9 | 10 11 12 | 13 14 15    the third must have both
 *
 * Within these rules, the cuts are chosen that split the fewest packages and nodes, then caches, and among those
 * the most even ones.
 */
#include "tools/tuttirun/launch_place.h"

#include <stdint.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"

/* Start of each core in the array; starts[ncores] is its end. */
typedef struct core_map {
    const tutti_topology *topology;
    int ncores;
    int *starts;
} core_map;

/* Offset, in a CPU, of the number of its domain of one kind. */
typedef size_t domain;
#define CORE    offsetof(tutti_topology_cpu, core)
#define CACHE   offsetof(tutti_topology_cpu, cache)
#define NODE    offsetof(tutti_topology_cpu, node)
#define PACKAGE offsetof(tutti_topology_cpu, package)

static int id_of(const tutti_topology *topology, int index, domain kind) {
    return *(const int *)((const char *)&topology->cpus[index] + kind);
}

static tutti_status map_cores(const tutti_topology *topology, core_map *map_out) {
    core_map map = {.topology = topology};
    TUTTI_TRY(tutti_calloc((size_t)topology->ncpus + 1, sizeof *map.starts, &map.starts));
    for (int i = 0; i < topology->ncpus; i++)
        if (i == 0 || id_of(topology, i, CORE) != id_of(topology, i - 1, CORE)) map.starts[map.ncores++] = i;
    map.starts[map.ncores] = topology->ncpus;
    *map_out = map;
    return TUTTI_OK;
}

static tutti_place_range cores_range(const core_map *map, int first, int count) {
    return (tutti_place_range){map->starts[first], map->starts[first + count] - map->starts[first]};
}

/* All CPUs within bounds that share the domain of the CPU at `index`. */
static tutti_place_range domain_within(const tutti_topology *topology, tutti_place_range bounds, int index,
                                       domain kind) {
    int first = index, end = index + 1, id = id_of(topology, index, kind);
    while (first > bounds.first && id_of(topology, first - 1, kind) == id) first--;
    while (end < bounds.first + bounds.count && id_of(topology, end, kind) == id) end++;
    return (tutti_place_range){first, end - first};
}

static tutti_place_range domain_range(const tutti_topology *topology, int index, domain kind) {
    return domain_within(topology, (tutti_place_range){0, topology->ncpus}, index, kind);
}

/* ----------------------------------------------------------------------------------------- fair shares */

/* Whether a domain continues across a cut before the core. */
static bool cuts(const core_map *map, int core, domain kind) {
    if (core == 0 || core == map->ncores) return false;
    int index = map->starts[core];
    return id_of(map->topology, index, kind) == id_of(map->topology, index - 1, kind);
}

/* Whether cores [first, end) are part of one domain and cores of another; whole domains, or part of only one, are
 * allowed. */
static bool tears(const core_map *map, int first, int end, domain kind) {
    bool several = id_of(map->topology, map->starts[first], kind) != id_of(map->topology, map->starts[end] - 1, kind);
    return several && (cuts(map, first, kind) || cuts(map, end, kind));
}

/* Each term outweighs all lesser ones together: there are at most 8192 cores. */
static int64_t share_cost(const core_map *map, int first, int end) {
    int64_t coarse = tears(map, first, end, PACKAGE) + tears(map, first, end, NODE);
    int64_t count = end - first;
    return coarse << 44 | (int64_t)tears(map, first, end, CACHE) << 28 | (count * count);
}

/*
 * The cheapest cuts. With share = cores / ranks, the choice is which ranks get the `spare` cores that remain, so
 * cost[rank][used] is the cost of the best cuts for ranks [0..rank) that give them `used` of the spare cores. A
 * rank gets at most share + 1 spare cores: more than about twice the cores of the others would not be fair.
 */
typedef struct cutting {
    const core_map *map;
    int nranks, share, spare;
    int64_t *cost;
    int *extra; /* number of spare cores taken by the last of these ranks */
} cutting;

static size_t at(const cutting *c, int rank, int used) {
    return (size_t)rank * (size_t)(c->spare + 1) + (size_t)used;
}

/* Among cuts of equal cost, those are kept that give the spare cores to earlier ranks. */
static void cut_for(const cutting *c, int rank) {
    for (int used = c->spare; used >= 0; used--) {
        int64_t before = c->cost[at(c, rank, used)];
        int first = rank * c->share + used;
        if (before == INT64_MAX) continue;
        for (int extra = 0; extra <= c->share + 1 && used + extra <= c->spare; extra++) {
            int64_t cost = before + share_cost(c->map, first, first + c->share + extra);
            size_t there = at(c, rank + 1, used + extra);
            if (cost >= c->cost[there]) continue;
            c->cost[there] = cost;
            c->extra[there] = extra;
        }
    }
}

static tutti_status place_shares(const core_map *map, int nranks, tutti_place_range *ranges_out) {
    cutting c = {.map = map, .nranks = nranks, .share = map->ncores / nranks, .spare = map->ncores % nranks};
    size_t states = at(&c, nranks + 1, 0);
    tutti_status status = TUTTI_OK;
    TUTTI_TRY_GOTO(status, tutti_calloc(states, sizeof *c.cost, &c.cost), done);
    TUTTI_TRY_GOTO(status, tutti_calloc(states, sizeof *c.extra, &c.extra), done);
    for (size_t i = 1; i < states; i++) c.cost[i] = INT64_MAX;
    for (int rank = 0; rank < nranks; rank++) cut_for(&c, rank);
    for (int rank = nranks - 1, used = c.spare; rank >= 0; rank--) {
        int extra = c.extra[at(&c, rank + 1, used)];
        used -= extra;
        ranges_out[rank] = cores_range(map, rank * c.share + used, c.share + extra);
    }
done:
    free(c.extra);
    free(c.cost);
    return status;
}

/* -------------------------------------------------------------------------------------- whole domains */

/* Index of the CPU that a rank is placed near: the first of the node of its GPU, or the start of its share of all
 * cores. */
static tutti_status find_home(const core_map *map, int rank, int nranks, const int *nodes, int *home_out) {
    const tutti_topology *topology = map->topology;
    int index = map->starts[(int64_t)rank * map->ncores / nranks];
    if (nodes != NULL)
        for (index = 0; index < topology->ncpus && topology->cpus[index].node != nodes[rank];) index++;
    if (index == topology->ncpus)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "the GPU of local rank %d is near NUMA node %d, but tuttirun may use no core of that node",
                          rank, nodes[rank]);
    *home_out = index;
    return TUTTI_OK;
}

/* Position of the rank among the ranks with the same home node, and their number. */
static void find_turn(const tutti_topology *topology, const int *homes, int rank, int nranks, int *turn_out,
                      int *members_out) {
    *turn_out = *members_out = 0;
    for (int other = 0; other < nranks; other++) {
        if (topology->cpus[homes[other]].node != topology->cpus[homes[rank]].node) continue;
        *turn_out += other < rank;
        ++*members_out;
    }
}

/* Divides the cores of the node into equal parts; the remaining ones go to its first ranks. */
static tutti_status place_exclusively(const core_map *map, tutti_place_range node, int turn, int members,
                                      tutti_place_range *range_out) {
    int first = 0, count = 0;
    while (map->starts[first] < node.first) first++;
    while (map->starts[first + count] < node.first + node.count) count++;
    if (members > count)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "exclusive cores: NUMA node %d has %d for %d ranks; --numa-binding node lets them share",
                          map->topology->cpus[node.first].node, count, members);
    int share = count / members, spare = count % members;
    int skipped = turn * share + (turn < spare ? turn : spare);
    *range_out = cores_range(map, first + skipped, share + (turn < spare));
    return TUTTI_OK;
}

/* Number of caches of the node that have more CPUs than this one, or as many and come first. */
static int caches_before(const tutti_topology *topology, tutti_place_range node, tutti_place_range cache) {
    int before = 0;
    for (int i = node.first; i < node.first + node.count;) {
        tutti_place_range other = domain_within(topology, node, i, CACHE);
        before += other.count > cache.count || (other.count == cache.count && other.first < cache.first);
        i = other.first + other.count;
    }
    return before;
}

/* The largest cache of the node at turn 0, the next one at turn 1, and after the smallest the largest again. */
static tutti_place_range nth_cache(const tutti_topology *topology, tutti_place_range node, int turn) {
    tutti_place_range cache = node;
    int ncaches = 0;
    for (int i = node.first; i < node.first + node.count; i += domain_within(topology, node, i, CACHE).count) ncaches++;
    for (int i = node.first; i < node.first + node.count; i += cache.count) {
        cache = domain_within(topology, node, i, CACHE);
        if (caches_before(topology, node, cache) == turn % ncaches) break;
    }
    return cache;
}

static tutti_status place_near(const core_map *map, tutti_launch_place place, const int *homes, int rank, int nranks,
                               tutti_place_range *range_out) {
    const tutti_topology *topology = map->topology;
    tutti_place_range node = domain_range(topology, homes[rank], NODE);
    int turn, members;
    find_turn(topology, homes, rank, nranks, &turn, &members);
    switch (place) {
    case TUTTI_PLACE_CACHE: *range_out = domain_range(topology, homes[rank], CACHE); break;
    case TUTTI_PLACE_PACKAGE: *range_out = domain_range(topology, homes[rank], PACKAGE); break;
    case TUTTI_PLACE_EXCLUSIVE: return place_exclusively(map, node, turn, members, range_out);
    case TUTTI_PLACE_COMPLEX: *range_out = nth_cache(topology, node, turn); break;
    default: *range_out = node; break;
    }
    return TUTTI_OK;
}

tutti_status tutti_place_ranks(const tutti_topology *topology, tutti_launch_place place, int nranks, const int *nodes,
                               tutti_place_range *ranges_out) {
    core_map map = {0};
    int *homes = NULL;
    tutti_status status = TUTTI_OK;
    for (int rank = 0; rank < nranks; rank++) ranges_out[rank] = (tutti_place_range){0, 0};
    TUTTI_TRY(map_cores(topology, &map));
    if (place == TUTTI_PLACE_NONE || (place == TUTTI_PLACE_AUTO && nranks > map.ncores)) goto done;
    if (place == TUTTI_PLACE_AUTO) {
        status = place_shares(&map, nranks, ranges_out);
        goto done;
    }
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)nranks, sizeof *homes, &homes), done);
    for (int rank = 0; rank < nranks; rank++)
        TUTTI_TRY_GOTO(status, find_home(&map, rank, nranks, nodes, &homes[rank]), done);
    for (int rank = 0; rank < nranks; rank++) {
        if (place == TUTTI_PLACE_CORE) ranges_out[rank] = cores_range(&map, rank % map.ncores, 1);
        else TUTTI_TRY_GOTO(status, place_near(&map, place, homes, rank, nranks, &ranges_out[rank]), done);
    }
done:
    free(homes);
    free(map.starts);
    return status;
}
