//! Part of the example `entry_cost`: searches for the most expensive Redis commands, in transactions, in bursts, and in
//! entries of many batches.

use thalweg_redis::{Run, table::find};
use thalweg_types::{command::RedisBuilder, limits::MAX_VALUE_BYTES};

use crate::{
    Search, Space,
    data::{FEW, REDIS, burst, key, large, multi, one, single, words},
    proposed,
};

const VALUE: [u8; 64] = [b'v'; 64];
/// Number of `SCAN`s of 1,000 keys each in a batch. Together they use up most of the steps of work that a batch may
/// spend on reads.
const SCANS: usize = 40;

/// Returns true if the log can contain the command with this name: one that reads or changes keys.
pub(crate) fn is_logged(name: &str) -> bool {
    find(name.as_bytes()).is_some_and(|command| !matches!(command.run, Run::Session))
}

pub(crate) fn search(search: &mut Search<'_>) {
    large_values(search);
    strings(search);
    keys(search);
    hashes(search);
    streams(search);
    pending(search);
    entries(search);
    // This kind is the last one, because it empties the keyspace.
    for flush in [b"FLUSHDB".as_slice(), b"FLUSHALL"] {
        search.kind(&format!("MULTI: SET, then {} as often", String::from_utf8_lossy(flush)), &|n| {
            one(multi(2 * n, |at| if at < n { words(&[b"SET", &key(at), b"v"]) } else { words(&[flush]) }))
        });
    }
}

/// Measures `MULTI`s in which each command works on a value of 8 MiB. The list contains the commands without the key;
/// the function inserts the key as first argument.
fn large_values(search: &mut Search<'_>) {
    let last = (MAX_VALUE_BYTES - 1).to_string();
    let node = search.node;
    for command in [
        &[b"SETRANGE".as_slice(), last.as_bytes(), b"x"] as &[&[u8]],
        &[b"GET"],
        &[b"GETRANGE", b"0", b"-1"],
        &[b"SUBSTR", b"0", b"-1"],
        &[b"STRLEN"],
        &[b"EXPIRE", b"1000000"],
        &[b"PEXPIRE", b"1000000000"],
        &[b"EXPIREAT", b"99999999999"],
        &[b"PEXPIREAT", b"99999999999999"],
        &[b"PERSIST"],
    ] {
        let args = |at: usize| [&[command[0].to_vec(), large(at)], &words(&command[1..])[..]].concat();
        search.kind(&format!("MULTI: {} of 8 MiB", String::from_utf8_lossy(command[0])), &|n| one(multi(n, args)));
    }
    search.kind("MULTI: MGET of 8 MiB", &|n| {
        one(multi(1, |_| std::iter::once(b"MGET".to_vec()).chain((0..n).map(large)).collect()))
    });
    let fill = || {
        for number in 0..8 {
            let set = single(&words(&[b"SETRANGE", &large(number), last.as_bytes(), b"x"]));
            node.must(set.expect("within the limits"));
        }
    };
    for command in [b"GETDEL".as_slice(), b"RENAME", b"RENAMENX", b"GETSET", b"APPEND", b"COPY"] {
        search.kind(&format!("MULTI: {} of 8 MiB", String::from_utf8_lossy(command)), &|n| {
            fill();
            let to = |at| format!("to{at}").into_bytes();
            let deleted = (0..8).map(to).fold(words(&[b"DEL"]), |mut all, key| {
                all.push(key);
                all
            });
            node.must(single(&deleted).expect("few"));
            let copied = b"copied".to_vec();
            one(multi(n, |at| match command {
                b"GETDEL" => vec![command.to_vec(), large(at)],
                b"GETSET" => vec![command.to_vec(), large(at), b"v".to_vec()],
                b"APPEND" => vec![command.to_vec(), copied.clone(), b"v".to_vec()],
                b"COPY" => vec![command.to_vec(), copied.clone(), to(at)],
                _ => vec![command.to_vec(), large(at), to(at)],
            }))
            .filter(|_| n <= 8)
        });
        fill();
    }
    search.kind("MULTI: GETEX of 4 MiB", &|n| one(multi(n, |_| words(&[b"GETEX", b"copied", b"EX", b"1000000"]))));
    search.kind("MULTI: EXPIRE of 8 MiB, then SCANs", &|n| {
        one(burst(n, |at| words(&[b"EXPIRE", &large(at), b"1000000"]), SCANS))
    });
}

fn strings(search: &mut Search<'_>) {
    let counter = |at: usize| format!("counter{at}").into_bytes();
    search.kind("MULTI: SET", &|n| one(multi(n, |at| words(&[b"SET", &key(at), &VALUE]))));
    search.kind("MULTI: SET of 1 KiB with GET and EX", &|n| {
        one(multi(n, |at| words(&[b"SET", &key(at), &[b'v'; 1024], b"GET", b"EX", b"1000000"])))
    });
    search.kind("MULTI: SETEX", &|n| one(multi(n, |at| words(&[b"SETEX", &key(at), b"1000000", &VALUE]))));
    search.kind("MULTI: PSETEX", &|n| one(multi(n, |at| words(&[b"PSETEX", &key(at), b"1000000000", &VALUE]))));
    search.kind("MULTI: SETNX", &|n| one(multi(n, |at| words(&[b"SETNX", &key(at), &VALUE]))));
    search.kind("MULTI: GETSET", &|n| one(multi(n, |at| words(&[b"GETSET", &key(at), &VALUE]))));
    search.kind("MULTI: GET", &|n| one(multi(n, |at| words(&[b"GET", &key(at)]))));
    search.kind("MULTI: APPEND", &|n| one(multi(n, |at| words(&[b"APPEND", &key(at), b"v"]))));
    let pairs = |name: &[u8], n: usize| {
        let pairs = (0..n).flat_map(|at| [key(at), VALUE.to_vec()]);
        one(single(&std::iter::once(name.to_vec()).chain(pairs).collect::<Vec<_>>()))
    };
    search.kind("MSET", &|n| pairs(b"MSET", n));
    search.kind("MSETNX of existing keys", &|n| pairs(b"MSETNX", n));
    search.kind("MULTI: MGET", &|n| {
        one(multi(1, |_| std::iter::once(b"MGET".to_vec()).chain((0..n).map(key)).collect()))
    });
    for command in [b"INCR".as_slice(), b"DECR"] {
        search.kind(&format!("MULTI: {}", String::from_utf8_lossy(command)), &|n| {
            one(multi(n, |at| words(&[command, &counter(at)])))
        });
    }
    for command in [b"INCRBY".as_slice(), b"DECRBY", b"INCRBYFLOAT"] {
        search.kind(&format!("MULTI: {}", String::from_utf8_lossy(command)), &|n| {
            one(multi(n, |at| words(&[command, &counter(at + 50_000), b"7"])))
        });
    }
    search.kind("MULTI: INCRBYFLOAT with 4,900 digits", &|n| {
        one(multi(n, |_| words(&[b"INCRBYFLOAT".as_slice(), b"astronomic", b"1e4900"])))
    });
}

fn keys(search: &mut Search<'_>) {
    for command in [
        b"DEL".as_slice(),
        b"UNLINK",
        b"EXISTS",
        b"TOUCH",
        b"TYPE",
        b"TTL",
        b"PTTL",
        b"EXPIRETIME",
        b"PEXPIRETIME",
        b"PERSIST",
        b"GETDEL",
    ] {
        search.kind(&format!("MULTI: {} of one key", String::from_utf8_lossy(command)), &|n| {
            one(multi(n, |at| words(&[command, &key(at)])))
        });
    }
    search.kind("DEL of many keys", &|n| {
        one(single(&std::iter::once(b"DEL".to_vec()).chain((0..n).map(key)).collect::<Vec<_>>()))
    });
    search.kind("MULTI: SET again", &|n| one(multi(n, |at| words(&[b"SET", &key(at), &VALUE]))));
    search.kind("MULTI: EXPIRE", &|n| one(multi(n, |at| words(&[b"EXPIRE", &key(at + 100_000), b"1000000"]))));
    search.kind("MULTI: RENAME there and back", &|n| {
        one(multi(2 * n, |at| {
            let (here, there) = (key(100_000 + at / 2), format!("renamed{}", at / 2).into_bytes());
            if at % 2 == 0 { words(&[b"RENAME", &here, &there]) } else { words(&[b"RENAME", &there, &here]) }
        }))
    });
    search.kind("MULTI: COPY of a hash", &|n| {
        one(multi(n, |at| words(&[b"COPY", b"copied hash", format!("to hash {at}").as_bytes(), b"REPLACE"])))
    });
    search.kind("MULTI: COPY", &|n| {
        one(multi(n, |at| words(&[b"COPY", &key(at + 100_000), &key(at + 150_000), b"REPLACE"])))
    });
    search.kind("KEYS with a hostile pattern", &|n| {
        let pattern = [&b"*"[..], &b"?*".repeat(n.min(3_000)), b"x"].concat();
        one(few(&[&words(&[b"KEYS", &pattern])]).filter(|_| pattern.len() <= 4096))
    });
    search.kind("MULTI: SCAN with a hostile pattern", &|n| {
        let pattern = [&b"*"[..], &b"?*".repeat(2_000), b"x"].concat();
        one(multi(n, |_| words(&[b"SCAN", b"", b"COUNT", b"10", b"MATCH", &pattern])))
    });
    search.kind("MULTI: SCAN with a short pattern", &|n| {
        one(multi(n, |_| words(&[b"SCAN", b"", b"COUNT", b"1000", b"MATCH", b"*0*0*0*0*0*x"])))
    });
    search.kind("MULTI: SCAN", &|n| one(multi(n, |_| words(&[b"SCAN", b"", b"COUNT", b"1000"]))));
    search.kind("MULTI: RANDOMKEY", &|n| one(multi(n, |_| words(&[b"RANDOMKEY"]))));
    search.kind("MULTI: DBSIZE", &|n| one(multi(n, |_| words(&[b"DBSIZE"]))));
    search
        .kind("MULTI: MEMORY USAGE", &|n| one(multi(n, |_| words(&[b"MEMORY", b"USAGE", b"hash", b"SAMPLES", b"0"]))));
    search
        .kind("MULTI: OBJECT ENCODING of 8 MiB", &|n| one(multi(n, |at| words(&[b"OBJECT", b"ENCODING", &large(at)]))));
    search.kind("watched keys", &|n| {
        let mut builder = RedisBuilder::new(REDIS);
        for number in 0..n {
            builder.watch(&key(number + 100_000), u64::MAX).ok()?;
        }
        builder.push(&[b"PING"]).ok()?;
        Some(vec![builder.finish()])
    });
}

fn hashes(search: &mut Search<'_>) {
    search.kind("MULTI: HSET", &|n| one(multi(n, |at| words(&[b"HSET", b"hash", &key(at), &VALUE]))));
    search.kind("MULTI: HSET of new hashes", &|n| {
        one(multi(n, |at| words(&[b"HSET", format!("hash of {at}").as_bytes(), b"f", &VALUE])))
    });
    search.kind("MULTI: HSETNX", &|n| one(multi(n, |at| words(&[b"HSETNX", b"hash", &key(at), &VALUE]))));
    for command in [b"HSET".as_slice(), b"HMSET"] {
        search.kind(&format!("{} of many fields", String::from_utf8_lossy(command)), &|n| {
            let fields = (0..n).flat_map(|at| [key(at), VALUE.to_vec()]);
            one(single(&[command.to_vec(), b"hash".to_vec()].into_iter().chain(fields).collect::<Vec<_>>()))
        });
    }
    for command in [b"HGET".as_slice(), b"HSTRLEN", b"HEXISTS"] {
        search.kind(&format!("MULTI: {}", String::from_utf8_lossy(command)), &|n| {
            one(multi(n, |at| words(&[command, b"hash", &key(at)])))
        });
    }
    for command in [b"HMGET".as_slice(), b"HDEL"] {
        search.kind(&format!("{} of many fields", String::from_utf8_lossy(command)), &|n| {
            one(multi(1, |_| [command.to_vec(), b"hash".to_vec()].into_iter().chain((0..n).map(key)).collect()))
        });
    }
    search.kind("MULTI: HDEL", &|n| one(multi(n, |at| words(&[b"HDEL", b"hash", &key(at)]))));
    search.kind("MULTI: HSET again", &|n| one(multi(n, |at| words(&[b"HSET", b"hash", &key(at), &VALUE]))));
    for command in [b"HINCRBY".as_slice(), b"HINCRBYFLOAT"] {
        search.kind(&format!("MULTI: {}", String::from_utf8_lossy(command)), &|n| {
            one(multi(n, |at| words(&[command, b"numbers", &key(at), b"7"])))
        });
    }
    search.kind("MULTI: HLEN", &|n| one(multi(n, |_| words(&[b"HLEN", b"hash"]))));
    for command in [b"HGETALL".as_slice(), b"HKEYS", b"HVALS"] {
        search.kind(&format!("MULTI: {} of 5,000 fields", String::from_utf8_lossy(command)), &|n| {
            one(multi(n, |_| words(&[command, b"copied hash"])))
        });
    }
    search.kind("MULTI: HSCAN", &|n| one(multi(n, |_| words(&[b"HSCAN", b"hash", b"0", b"COUNT", b"1000"]))));
    search.kind("MULTI: HRANDFIELD of many", &|n| {
        one(multi(1, |_| words(&[b"HRANDFIELD", b"hash", format!("-{n}").as_bytes(), b"WITHVALUES"])))
    });
}

fn streams(search: &mut Search<'_>) {
    search.kind("MULTI: XADD", &|n| one(multi(n, |_| words(&[b"XADD", b"stream", b"*", b"f", &VALUE]))));
    search.kind("MULTI: XADD to new streams", &|n| {
        one(multi(n, |at| words(&[b"XADD", format!("stream{at}").as_bytes(), b"*", b"f", &VALUE])))
    });
    search.kind("MULTI: XADD with MAXLEN", &|n| {
        one(multi(n, |_| words(&[b"XADD", b"trimmed", b"MAXLEN", b"1", b"*", b"f", &VALUE])))
    });
    let node = search.node;
    search.kind("MULTI: XTRIM of many", &|n| {
        for _ in 0..n.min(10_000) / 1_000 + 1 {
            node.must(multi(1_000, |_| words(&[b"XADD", b"trimmed", b"*", b"f", &VALUE])).expect("few"));
        }
        one(multi(1, |_| words(&[b"XTRIM", b"trimmed", b"MAXLEN", b"0"])).filter(|_| n <= 10_000))
    });
    for command in [[b"XRANGE".as_slice(), b"-", b"+"], [b"XREVRANGE", b"+", b"-"]] {
        search.kind(&format!("MULTI: {}", String::from_utf8_lossy(command[0])), &|n| {
            let count = n.to_string();
            one(multi(1, |_| words(&[command[0], b"stream", command[1], command[2], b"COUNT", count.as_bytes()])))
        });
    }
    search.kind("MULTI: XREAD", &|n| {
        let count = n.to_string();
        one(multi(1, |_| words(&[b"XREAD", b"COUNT", count.as_bytes(), b"STREAMS", b"stream", b"0"])))
    });
    search.kind("MULTI: XLEN", &|n| one(multi(n, |_| words(&[b"XLEN", b"stream"]))));
    search.kind("MULTI: XSETID", &|n| one(multi(n, |_| words(&[b"XSETID", b"stream", b"99999999999999999-0"]))));
    search.kind("MULTI: XINFO STREAM FULL", &|n| {
        let count = n.to_string();
        one(multi(1, |_| words(&[b"XINFO", b"STREAM", b"stream", b"FULL", b"COUNT", count.as_bytes()])))
    });
    search.kind("MULTI: XINFO GROUPS", &|n| one(multi(n, |_| words(&[b"XINFO", b"GROUPS", b"stream"]))));
}

/// Encodes a batch of commands for the keyspace [`FEW`], in which one command can read all keys.
fn few(commands: &[&[Vec<u8>]]) -> Option<Vec<u8>> {
    let mut builder = RedisBuilder::new(FEW);
    for args in commands {
        builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).ok()?;
    }
    Some(builder.finish())
}

/// Measures commands on the pending entries of a Redis stream's consumer groups.
fn pending(search: &mut Search<'_>) {
    let node = search.node;
    let group = |commands: &[&[&[u8]]]| {
        for command in commands {
            node.must(single(&words(command)).expect("few"));
        }
    };
    search.kind("MULTI: XREADGROUP", &|n| {
        group(&[&[b"XGROUP", b"SETID", b"stream", b"g", b"0"]]);
        let count = n.min(10_000).to_string();
        let args =
            words(&[b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", count.as_bytes(), b"STREAMS", b"stream", b">"]);
        one(multi(1, |_| args.clone()).filter(|_| n <= 10_000))
    });
    search.kind("MULTI: XREADGROUP of pending entries", &|n| {
        let count = n.min(10_000).to_string();
        let args =
            words(&[b"XREADGROUP", b"GROUP", b"p", b"c", b"COUNT", count.as_bytes(), b"STREAMS", b"stream", b"0"]);
        one(multi(1, |_| args.clone()).filter(|_| n <= 10_000))
    });
    search.kind("MULTI: XPENDING", &|n| {
        let count = n.to_string();
        one(multi(1, |_| words(&[b"XPENDING", b"stream", b"p", b"-", b"+", count.as_bytes()])))
    });
    search.kind("MULTI: XPENDING, summaries", &|n| one(multi(n, |_| words(&[b"XPENDING", b"stream", b"p"]))));
    for idle in [[b"0".as_slice(), b"0"], [b"99999999999999", b"0"]] {
        let name = if idle[0] == b"0" { "MULTI: XAUTOCLAIM" } else { "MULTI: XAUTOCLAIM of nothing idle" };
        search.kind(name, &|n| {
            let count = n.to_string();
            let args = words(&[b"XAUTOCLAIM", b"stream", b"p", b"d", idle[0], idle[1], b"COUNT", count.as_bytes()]);
            one(multi(1, |_| args.clone()))
        });
    }
    let ids: Vec<Vec<u8>> = {
        let read = node.must(single(&words(&[b"XPENDING", b"stream", b"p", b"-", b"+", b"10000"])).expect("few"));
        pending_ids(&format!("{read:?}"))
    };
    let listed = |head: &[&[u8]], n: usize| {
        let args = words(head).into_iter().chain(ids.iter().take(n).cloned()).collect::<Vec<_>>();
        one(multi(1, |_| args.clone()).filter(|_| n <= ids.len()))
    };
    search.kind("MULTI: XCLAIM", &|n| listed(&[b"XCLAIM", b"stream", b"p", b"e", b"0"], n));
    search.kind("MULTI: XACK", &|n| {
        group(&[
            &[b"XGROUP", b"SETID", b"stream", b"p", b"0"],
            &[b"XREADGROUP", b"GROUP", b"p", b"c", b"COUNT", b"5000", b"STREAMS", b"stream", b">"],
        ]);
        listed(&[b"XACK", b"stream", b"p"], n)
    });
    search.kind("MULTI: XDEL", &|n| listed(&[b"XDEL", b"stream"], n));
    search.kind("MULTI: XGROUP CREATE", &|n| {
        one(multi(2 * n, |at| {
            let name = format!("made{}", at / 2);
            if at % 2 == 0 {
                words(&[b"XGROUP", b"CREATE", b"stream", name.as_bytes(), b"0"])
            } else {
                words(&[b"XGROUP", b"DESTROY", b"stream", name.as_bytes()])
            }
        }))
    });
    search.kind("MULTI: XGROUP DESTROY with pending entries", &|n| {
        group(&[
            &[b"XGROUP", b"DESTROY", b"stream", b"gone"],
            &[b"XGROUP", b"CREATE", b"stream", b"gone", b"0"],
            &[b"XREADGROUP", b"GROUP", b"gone", b"c", b"COUNT", b"5000", b"STREAMS", b"stream", b">"],
        ]);
        one(multi(1, |_| words(&[b"XGROUP", b"DESTROY", b"stream", b"gone"]))).filter(|_| n == 1)
    });
    search.kind("MULTI: XGROUP DELCONSUMER with pending entries", &|n| {
        let count = n.min(10_000).to_string();
        group(&[
            &[b"XGROUP", b"DESTROY", b"stream", b"left"],
            &[b"XGROUP", b"CREATE", b"stream", b"left", b"0"],
            &[b"XREADGROUP", b"GROUP", b"left", b"c", b"COUNT", count.as_bytes(), b"STREAMS", b"stream", b">"],
        ]);
        let deleted = words(&[b"XGROUP", b"DELCONSUMER", b"stream", b"left", b"c"]);
        one(multi(2, |at| match at {
            0 => deleted.clone(),
            _ => words(&[b"XGROUP", b"DESTROY", b"stream", b"left"]),
        }))
        .filter(|_| n <= 10_000)
    });
}

/// Returns the ids of entries that occur in a reply, which is given as its Rust debug output.
fn pending_ids(reply: &str) -> Vec<Vec<u8>> {
    let words = reply.split(|char: char| !(char.is_ascii_digit() || char == '-'));
    words.filter(|word| word.len() > 8 && word.contains('-')).map(|word| word.as_bytes().to_vec()).collect()
}

fn entries(search: &mut Search<'_>) {
    let repeated = |n: usize, args: &dyn Fn(usize) -> Vec<Vec<u8>>| {
        proposed(Space::Plain, n, &|at| single(&args(at)).expect("within the limits"))
    };
    search.kind("entry: GET of 8 MiB", &|n| repeated(n, &|at| words(&[b"GET", &large(at)])));
    search.kind("entry: SET", &|n| repeated(n, &|at| words(&[b"SET", &key(at), &VALUE])));
    search.kind("entry: SETEX", &|n| repeated(n, &|at| words(&[b"SETEX", &key(at), b"1000000", &VALUE])));
    search.kind("entry: DEL", &|n| repeated(n, &|at| words(&[b"DEL", &key(at)])));
    search.kind("entry: HSET", &|n| repeated(n, &|at| words(&[b"HSET", b"hash", &key(at), &VALUE])));
    search.kind("entry: XADD", &|n| repeated(n, &|_| words(&[b"XADD", b"stream", b"*", b"f", &VALUE])));
    search.kind("entry: XACK", &|n| repeated(n, &|_| words(&[b"XACK", b"stream", b"p", b"1-1"])));
}
