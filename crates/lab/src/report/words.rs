//! Words in reports that a reader may not know, and their meanings.

/// Groups of words as they occur in reports, and the meaning that a page shows for each group. The first word of a
/// group is its heading.
const WORDS: &[(&[&str], &str)] = &[
    (
        &["p50", "p90", "p99", "p99.9"],
        "the time that 50, 90, 99 or 99.9 % of the requests do not exceed; p99 of 2,000 µs: one request in a hundred took \
         longer than 2 ms",
    ),
    (
        &["durability"],
        "the point at which a write is acknowledged: none (in the process), os (written to the kernel), interval (and synced \
         soon after), disk (synced, survives a loss of power), quorum (synced on a majority of the nodes). Figures of \
         different levels cannot be compared",
    ),
    (&["± MAD"], "median absolute deviation: half of the rounds differ from the median by at most this"),
    (
        &["lag"],
        "time by which the load generator itself sent a request late. With too much lag a run does not measure the server, \
         and is void",
    ),
    (
        &["service"],
        "time from the moment at which a request was sent. All other times count from the moment at which it was due, so a \
         stall shows in every request that was due during the stall",
    ),
    (&["constant", "Poisson"], "requests are due by a schedule: evenly spaced, or at random as from independent users"),
    (
        &["closed loop"],
        "the next request is sent after a reply, so a stalled server gets fewer requests and its stall is hardly seen. \
         Such runs measure throughput; their times are of little use",
    ),
    (&["pipeline"], "largest number of requests on a connection that have no reply yet"),
    (&["echo"], "a route of the same server that reads a request, stores nothing and replies: the cost of HTTP alone"),
    (&["knee"], "the highest rate at which the response times still meet the objective"),
    (
        &["void"],
        "not valid: the run says nothing about the server, for example because the load generator was too slow",
    ),
    (&["lower bound"], "the load generator was busy all the time, so the server may be able to do more than this rate"),
    (&["goals", "goal"], "a figure that Thalweg's developers want to reach on the machine of docs/performance.md"),
    (
        &["published"],
        "a figure that the authors of another system published for the same test, measured on their machine",
    ),
    (
        &["raw disk probe", "raw probe", "probe"],
        "the same number of bytes written to a file and synced, without any database: the limit of the disk itself",
    ),
    (&["behind the log", "(log)"], "Thalweg's usual way: the log makes a write durable, and the store follows"),
    (&["synced per batch", "(alone)"], "the store without Thalweg's log: it syncs each batch of writes itself"),
    (&["bare", "relay"], "the same bytes sent over the loopback without any server: the limit of the machine itself"),
    (&["interval from", "95 %"], "the range that contains the true value with a probability of 95 %"),
    (&["peak RSS"], "the largest amount of memory that the process had in use"),
    (&["written B/payload B"], "bytes written to the disk for each byte of keys and values"),
    (&["spectrum"], "response times at rising percentiles, up to the longest one"),
    (&["rounds"], "repetitions of each scenario; figures are medians over them"),
    (&["windows"], "parts of the measured time, each with figures of its own"),
    (&["link"], "the connections between the nodes of a cluster; their bytes are those of all nodes together"),
    (
        &["in the commit"],
        "of a replicated write: the time until a majority of the nodes has it on disk, so the slower one of the leader's own \
         fsync and a follower's answer",
    ),
];

/// Returns the words that occur in a text, with their meanings.
pub(super) fn words_in(text: &str) -> impl Iterator<Item = (String, &'static str)> {
    WORDS.iter().filter_map(move |(words, meaning)| {
        let found: Vec<&str> = words.iter().copied().filter(|word| contains_word(text, word)).collect();
        (!found.is_empty()).then(|| (found.join(", "), *meaning))
    })
}

fn contains_word(text: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(word).any(|(at, _)| {
        let after = &text[at + word.len()..];
        // "p99" does not occur as a word in "p99.9".
        let goes_on = is_letter(after.chars().next()) || (after.starts_with('.') && is_letter(after.chars().nth(1)));
        !goes_on && !is_letter(text[..at].chars().next_back())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_occur_are_explained() {
        let found: Vec<String> = words_in("p99.9 µs, lag p90, flags").map(|(words, _)| words).collect();
        assert_eq!(found, ["p90, p99.9", "lag"]);
        assert!(words_in("nothing").next().is_none());
    }
}
