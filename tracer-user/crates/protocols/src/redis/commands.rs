//! Names of Redis commands. Only these become request classes: a connection may send anything as a command, even a
//! password typed at the wrong moment.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

use super::queues::QueueCommand;

/// Commands without subcommands, of Redis and Valkey up to Redis 8.
const PLAIN: &str = "APPEND ASKING AUTH BGREWRITEAOF BGSAVE BITCOUNT BITFIELD BITFIELD_RO BITOP BITPOS BLMOVE BLMPOP BLPOP \
    BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN COPY DBSIZE DEBUG DECR DECRBY DEL DISCARD DUMP ECHO EVAL EVALSHA \
    EVALSHA_RO EVAL_RO EXEC EXISTS EXPIRE EXPIREAT EXPIRETIME FAILOVER FCALL FCALL_RO FLUSHALL FLUSHDB GEOADD \
    GEODIST GEOHASH GEOPOS GEORADIUS GEORADIUSBYMEMBER GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH \
    GEOSEARCHSTORE GET GETBIT GETDEL GETEX GETRANGE GETSET HDEL HELLO HEXISTS HEXPIRE HEXPIREAT HEXPIRETIME \
    HGET HGETALL HGETDEL HGETEX HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HPERSIST HPEXPIRE HPEXPIREAT \
    HPEXPIRETIME HPTTL HRANDFIELD HSCAN HSET HSETEX HSETNX HSTRLEN HTTL HVALS INCR INCRBY INCRBYFLOAT INFO \
    KEYS LASTSAVE LCS LINDEX LINSERT LLEN LMOVE LMPOP LOLWUT LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM \
    MGET MIGRATE MONITOR MOVE MSET MSETNX MULTI PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PFCOUNT PFDEBUG \
    PFMERGE PFSELFTEST PING PSETEX PSUBSCRIBE PSYNC PTTL PUBLISH PUNSUBSCRIBE QUIT RANDOMKEY READONLY \
    READWRITE RENAME RENAMENX REPLCONF REPLICAOF RESET RESTORE RESTORE-ASKING ROLE RPOP RPOPLPUSH RPUSH RPUSHX \
    SADD SAVE SCAN SCARD SDIFF SDIFFSTORE SELECT SET SETBIT SETEX SETNX SETRANGE SHUTDOWN SINTER SINTERCARD \
    SINTERSTORE SISMEMBER SLAVEOF SMEMBERS SMISMEMBER SMOVE SORT SORT_RO SPOP SPUBLISH SRANDMEMBER SREM SSCAN \
    SSUBSCRIBE STRLEN SUBSCRIBE SUBSTR SUNION SUNIONSTORE SUNSUBSCRIBE SWAPDB SYNC TIME TOUCH TTL TYPE UNLINK \
    UNSUBSCRIBE UNWATCH WAIT WAITAOF WATCH XACK XACKDEL XADD XAUTOCLAIM XCLAIM XDEL XDELEX XLEN XPENDING \
    XRANGE XREAD XREADGROUP XREVRANGE XSETID XTRIM ZADD ZCARD ZCOUNT ZDIFF ZDIFFSTORE ZINCRBY ZINTER \
    ZINTERCARD ZINTERSTORE ZLEXCOUNT ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE ZRANGEBYLEX \
    ZRANGEBYSCORE ZRANGESTORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE \
    ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE ZUNION ZUNIONSTORE";

/// Commands with subcommands.
const CONTAINERS: &[(&str, &str)] = &[
    ("ACL", "CAT DELUSER DRYRUN GENPASS GETUSER HELP LIST LOAD LOG SAVE SETUSER USERS WHOAMI"),
    (
        "CLIENT",
        "CACHING GETNAME GETREDIR HELP ID INFO KILL LIST NO-EVICT NO-TOUCH PAUSE REPLY SETINFO SETNAME TRACKING \
        TRACKINGINFO UNBLOCK UNPAUSE",
    ),
    (
        "CLUSTER",
        "ADDSLOTS ADDSLOTSRANGE BUMPEPOCH COUNT-FAILURE-REPORTS COUNTKEYSINSLOT DELSLOTS DELSLOTSRANGE FAILOVER \
        FLUSHSLOTS FORGET GETKEYSINSLOT HELP INFO KEYSLOT LINKS MEET MYID MYSHARDID NODES REPLICAS REPLICATE \
        RESET SAVECONFIG SET-CONFIG-EPOCH SETSLOT SHARDS SLAVES SLOT-STATS SLOTS",
    ),
    ("COMMAND", "COUNT DOCS GETKEYS GETKEYSANDFLAGS HELP INFO LIST"),
    ("CONFIG", "GET HELP RESETSTAT REWRITE SET"),
    ("FUNCTION", "DELETE DUMP FLUSH HELP KILL LIST LOAD RESTORE STATS"),
    ("LATENCY", "DOCTOR GRAPH HELP HISTOGRAM HISTORY LATEST RESET"),
    ("MEMORY", "DOCTOR HELP MALLOC-STATS PURGE STATS USAGE"),
    ("MODULE", "HELP LIST LOAD LOADEX UNLOAD"),
    ("OBJECT", "ENCODING FREQ HELP IDLETIME REFCOUNT"),
    ("PUBSUB", "CHANNELS HELP NUMPAT NUMSUB SHARDCHANNELS SHARDNUMSUB"),
    ("SCRIPT", "DEBUG EXISTS FLUSH HELP KILL LOAD"),
    (
        "SENTINEL",
        "CKQUORUM CONFIG DEBUG FAILOVER FLUSHCONFIG GET-MASTER-ADDR-BY-NAME HELP INFO-CACHE \
        IS-MASTER-DOWN-BY-ADDR MASTER MASTERS MONITOR MYID PENDING-SCRIPTS REMOVE REPLICAS RESET SENTINELS SET \
        SIMULATE-FAILURE SLAVES",
    ),
    ("SLOWLOG", "GET HELP LEN RESET"),
    ("XGROUP", "CREATE CREATECONSUMER DELCONSUMER DESTROY HELP SETID"),
    ("XINFO", "CONSUMERS GROUPS HELP STREAM"),
];

/// Commands of the usual modules, by module prefix.
const MODULES: &[(&str, &str)] = &[
    ("BF", "ADD CARD EXISTS INFO INSERT MADD MEXISTS RESERVE"),
    ("CF", "ADD ADDNX COUNT DEL EXISTS INFO INSERT INSERTNX MEXISTS RESERVE"),
    ("CMS", "INCRBY INFO INITBYDIM INITBYPROB MERGE QUERY"),
    (
        "FT",
        "_LIST AGGREGATE ALIASADD ALIASDEL ALIASUPDATE ALTER CREATE DROPINDEX EXPLAIN EXPLAINCLI INFO PROFILE \
        SEARCH SPELLCHECK SUGADD SUGDEL SUGGET SUGLEN SYNDUMP SYNUPDATE TAGVALS",
    ),
    (
        "JSON",
        "ARRAPPEND ARRINDEX ARRINSERT ARRLEN ARRPOP ARRTRIM CLEAR DEL FORGET GET MERGE MGET MSET NUMINCRBY \
        NUMMULTBY OBJKEYS OBJLEN RESP SET STRAPPEND STRLEN TOGGLE TYPE",
    ),
    ("TDIGEST", "ADD BYRANK BYREVRANK CDF CREATE INFO MAX MERGE MIN QUANTILE RANK RESET REVRANK TRIMMED_MEAN"),
    ("TOPK", "ADD COUNT INCRBY INFO LIST QUERY RESERVE"),
    (
        "TS",
        "ADD ALTER CREATE CREATERULE DECRBY DEL DELETERULE GET INCRBY INFO MADD MGET MRANGE MREVRANGE \
        QUERYINDEX RANGE REVRANGE",
    ),
];

/// Name of an unlisted command.
pub(super) const OTHER: &str = "_OTHER";
/// Longest name of a command or subcommand.
pub(super) const NAME_LIMIT: usize = 32;

/// A command.
#[derive(Debug)]
pub(super) struct RedisCommand {
    /// Its name, upper case.
    pub(super) name: Arc<str>,
    /// Its subcommands: name, and the joined name of command and subcommand.
    pub(super) subcommands: Vec<(&'static str, Arc<str>)>,
    /// What it does with a queue.
    pub(super) queue: QueueCommand,
}

/// Commands by name, and the name of all others.
#[derive(Debug)]
pub(super) struct Commands {
    by_name: FxHashMap<Box<[u8]>, RedisCommand>,
    /// [`OTHER`], shared.
    pub(super) other: Arc<str>,
    /// The empty path, shared.
    pub(super) empty: Arc<str>,
}

/// The lists above, indexed.
pub(super) static COMMANDS: LazyLock<Commands> = LazyLock::new(|| {
    let mut by_name = FxHashMap::default();
    let mut add = |name: String, subcommands: &'static str| {
        let joined = |word: &'static str| (word, Arc::from(format!("{name} {word}")));
        let subcommands = subcommands.split(' ').filter(|word| !word.is_empty()).map(joined).collect();
        let queue = QueueCommand::of(&name);
        by_name.insert(Box::from(name.as_bytes()), RedisCommand { name: Arc::from(name.as_str()), subcommands, queue });
    };
    for name in PLAIN.split(' ') {
        add(name.to_owned(), "");
    }
    for (name, subcommands) in CONTAINERS {
        add((*name).to_owned(), subcommands);
    }
    for (prefix, names) in MODULES {
        for name in names.split(' ') {
            add(format!("{prefix}.{name}"), "");
        }
    }
    Commands { by_name, other: Arc::from(OTHER), empty: Arc::from("") }
});

/// `word` in upper case, if short enough for a name.
fn upper(word: &[u8]) -> Option<([u8; NAME_LIMIT], usize)> {
    let mut name = [0; NAME_LIMIT];
    name.get_mut(..word.len())?.copy_from_slice(word);
    name.make_ascii_uppercase();
    Some((name, word.len()))
}

impl Commands {
    /// The command that `word` names, in any case.
    pub(super) fn find(&self, word: &[u8]) -> Option<&RedisCommand> {
        let (name, len) = upper(word)?;
        self.by_name.get(name.get(..len)?)
    }

    /// Whether any command's name begins with `word`.
    pub(super) fn begins(&self, word: &[u8]) -> bool {
        upper(word).is_some_and(|(name, len)| {
            let word = name.get(..len).unwrap_or_default();
            self.by_name.keys().any(|known| known.starts_with(word))
        })
    }
}

impl RedisCommand {
    /// The joined name with this subcommand; the command's own name if the subcommand is unknown.
    pub(super) fn with(&self, word: &[u8]) -> &Arc<str> {
        let known = self.subcommands.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(word));
        known.map_or(&self.name, |(_, joined)| joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_case_and_nothing_else() {
        let find = |word: &str| COMMANDS.find(word.as_bytes()).map(|command| command.name.to_string());
        assert_eq!(find("get").as_deref(), Some("GET"));
        assert_eq!(find("Json.Get").as_deref(), Some("JSON.GET"));
        assert_eq!(find("hunter2"), None);
        assert_eq!(find(""), None);
        assert_eq!(find(&"x".repeat(NAME_LIMIT + 1)), None);
        let config = COMMANDS.find(b"config").unwrap();
        assert_eq!((&**config.with(b"set"), &**config.with(b"hunter2")), ("CONFIG SET", "CONFIG"));
        assert!(COMMANDS.begins(b"ge") && !COMMANDS.begins(b"gx"));
        let longest = COMMANDS.by_name.keys().map(|name| name.len()).max();
        assert!(longest <= Some(NAME_LIMIT), "{longest:?}");
    }
}
