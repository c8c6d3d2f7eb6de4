"""What redis-py does with a server: every family of commands, as a program would use them.

Usage: python3 check.py HOST:PORT      Needs the package `redis`. Leaves nothing behind but its own keys deleted.
Ends with status 0 if all is as with Redis; says what is not and ends with 1 otherwise.
"""

import sys
import threading
import time

import redis

HOST, PORT = sys.argv[1].rsplit(":", 1)
PREFIX = "check-py:"


def client(protocol, **more):
    return redis.Redis(HOST, int(PORT), protocol=protocol, decode_responses=True, socket_timeout=10, **more)


def strings(r, key):
    assert r.set(key, "v") is True
    assert r.get(key) == "v"
    assert r.set(key, "w", nx=True) is None
    assert r.set(key, "w", xx=True, get=True) == "v"
    assert r.getex(key, ex=100) == "w" and 0 < r.ttl(key) <= 100
    assert r.persist(key) in (True, 1) and r.ttl(key) == -1
    assert r.append(key, "xyz") == 4 and r.getrange(key, 1, 2) == "xy" and r.strlen(key) == 4
    assert r.mset({key + "1": "a", key + "2": "b"}) is True
    assert r.mget(key + "1", key + "none", key + "2") == ["a", None, "b"]
    assert r.incrby(key + "n", 5) == 5 and r.decr(key + "n") == 4
    assert r.incrbyfloat(key + "f", 1.5) == 1.5
    assert r.getdel(key + "1") == "a" and r.exists(key + "1", key + "2") == 1
    try:
        r.incr(key)
        raise AssertionError("INCR of a word")
    except redis.ResponseError as error:
        assert str(error) == "value is not an integer or out of range", error


def keys(r, key):
    names = {f"{key}{number}" for number in range(50)}
    for name in names:
        r.set(name, name, px=100_000)
    assert set(r.scan_iter(match=key + "*", count=7)) == names
    assert r.type(f"{key}0") == "string"
    assert r.rename(f"{key}0", f"{key}new") is True
    assert r.copy(f"{key}new", f"{key}copy") in (True, 1)
    assert r.pexpire(f"{key}new", 5, gt=True) in (False, 0)
    assert r.delete(f"{key}new", f"{key}copy", *(names - {f"{key}0"})) == 51
    assert not list(r.scan_iter(match=key + "*"))


def hashes(r, key):
    fields = {f"f{number}": str(number) for number in range(100)}
    assert r.hset(key, mapping=fields) == 100
    assert r.hgetall(key) == fields
    assert r.hget(key, "f7") == "7" and r.hmget(key, "f1", "none") == ["1", None]
    assert r.hincrby(key, "f7", 3) == 10 and r.hlen(key) == 100
    assert dict(r.hscan_iter(key, count=9)) == {**fields, "f7": "10"}
    assert r.hdel(key, "f1", "none") == 1 and not r.hexists(key, "f1")
    try:
        r.get(key)
        raise AssertionError("GET of a hash")
    except redis.ResponseError as error:
        assert str(error).startswith("WRONGTYPE"), error


def transactions(r, key):
    with r.pipeline(transaction=True) as pipe:
        pipe.set(key, 1).incr(key).get(key)
        assert pipe.execute() == [True, 2, "2"]
    with r.pipeline() as pipe:
        pipe.watch(key)
        r.set(key, "other")
        pipe.multi()
        pipe.set(key, "mine")
        try:
            pipe.execute()
            raise AssertionError("a watched key has changed, and EXEC did not notice")
        except redis.WatchError:
            pass
    assert r.get(key) == "other"
    add = lambda pipe: (pipe.multi(), pipe.append(key, "!"))
    assert r.transaction(add, key) == [6]
    with r.pipeline(transaction=False) as pipe:
        for number in range(500):
            pipe.set(f"{key}{number}", number)
        for number in range(500):
            pipe.get(f"{key}{number}")
        replies = pipe.execute()
    assert replies == [True] * 500 + [str(number) for number in range(500)]


def streams(r, key):
    ids = [r.xadd(key, {"n": number}) for number in range(20)]
    assert r.xlen(key) == 20 and [entry[0] for entry in r.xrange(key)] == ids
    assert r.xrevrange(key, count=1)[0][1] == {"n": "19"}
    assert r.xgroup_create(key, "g", id="0") is True
    read = r.xreadgroup("g", "one", {key: ">"}, count=15)
    entries = read[key][0] if isinstance(read, dict) else read[0][1]
    assert [entry[0] for entry in entries] == ids[:15]
    assert r.xack(key, "g", *ids[:10]) == 10
    assert r.xpending(key, "g")["pending"] == 5
    claimed = r.xclaim(key, "g", "two", min_idle_time=0, message_ids=ids[10:12])
    assert [entry[0] for entry in claimed] == ids[10:12]
    assert r.xautoclaim(key, "g", "three", min_idle_time=0, count=10)[1]
    assert {group["name"] for group in r.xinfo_groups(key)} == {"g"}
    assert r.xtrim(key, maxlen=5, approximate=False) == 15 and r.xdel(key, ids[19]) == 1

    def append():
        # When the reader waits can't be seen from here: it finds the entry either way.
        time.sleep(0.05)
        client(2).xadd(key, {"n": "late"})

    thread = threading.Thread(target=append)
    thread.start()
    read = r.xread({key: "$"}, block=5000)
    thread.join()
    entries = read[key][0] if isinstance(read, dict) else read[0][1]
    assert entries[0][1] == {"n": "late"}, read


def channels(r, key):
    with r.pubsub(ignore_subscribe_messages=False) as by_name, r.pubsub() as by_pattern:
        by_name.subscribe(key + "a", key + "b")
        by_pattern.psubscribe(key + "[a-c]")
        told = [by_name.get_message(timeout=5), by_name.get_message(timeout=5), by_pattern.get_message(timeout=5)]
        assert [message["type"] for message in told] == ["subscribe", "subscribe", "psubscribe"]
        assert r.publish(key + "a", "1") == 2 and r.publish(key + "c", "2") == 1 and r.publish(key + "d", "3") == 0
        message = by_name.get_message(timeout=5)
        assert (message["type"], message["channel"], message["data"]) == ("message", key + "a", "1")
        for channel, data in ((key + "a", "1"), (key + "c", "2")):
            message = by_pattern.get_message(timeout=5)
            assert (message["type"], message["pattern"]) == ("pmessage", key + "[a-c]")
            assert (message["channel"], message["data"]) == (channel, data)
        assert r.pubsub_channels(key + "*") == [key + "a", key + "b"] or set(r.pubsub_channels(key + "*")) == {key + "a", key + "b"}
        assert dict(r.pubsub_numsub(key + "a")) == {key + "a": 1}
        by_name.unsubscribe()
        assert by_name.get_message(timeout=5)["type"] == "unsubscribe"


def cache(r, key):
    """Database 1: strings only, in memory."""
    one = redis.Redis(HOST, int(PORT), db=1, decode_responses=True)
    assert one.set(key, "v", ex=100) and one.get(key) == "v" and r.get(key) is None
    assert one.incr(key + "n") == 1 and one.delete(key, key + "n") == 2


def main():
    families = [strings, keys, hashes, transactions, streams, channels, cache]
    failed = 0
    for protocol in (2, 3):
        r = client(protocol, client_name="check-py")
        assert r.ping() and r.client_getname() == "check-py"
        for family in families:
            key = f"{PREFIX}{family.__name__}:"
            try:
                family(r, key)
                print(f"RESP{protocol} {family.__name__}: as with Redis")
            except (AssertionError, redis.RedisError) as error:
                failed += 1
                place = error.__traceback__
                while place.tb_next and place.tb_next.tb_frame.f_code.co_filename == __file__:
                    place = place.tb_next
                print(f"RESP{protocol} {family.__name__}: line {place.tb_lineno}: {type(error).__name__} {error}")
            left = list(r.scan_iter(match=PREFIX + "*"))
            if left:
                r.delete(*left)
    print(f"redis-py {redis.__version__}: {failed} of {2 * len(families)} families differ")
    sys.exit(1 if failed else 0)


main()
