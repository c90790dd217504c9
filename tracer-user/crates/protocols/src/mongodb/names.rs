//! Names of commands and numbers of errors. Only these leave the parser: a client may send anything as a command.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

/// Any other error.
pub(super) const OTHER: &str = "_OTHER";

/// Commands whose own value names a collection.
const OF_COLLECTION: &str = "aggregate checkShardingIndex cleanupOrphaned clone cloneCollectionAsCapped collMod collStats \
    compact convertToCapped count create createIndexes createSearchIndexes dataSize delete deleteIndexes distinct drop \
    dropIndexes dropSearchIndex find findAndModify findandmodify geoNear geoSearch getDistinctValues group insert \
    killCursors listIndexes listSearchIndexes mapReduce mapreduce parallelCollectionScan planCacheClear \
    planCacheClearFilters planCacheListFilters planCacheSetFilter reIndex setAllowMigrations update \
    updateSearchIndex validate";

/// Other commands; their values are numbers, user names, keys.
const PLAIN: &str = "abortMoveCollection abortReshardCollection abortTransaction abortUnshardCollection addShard \
    addShardToZone analyze analyzeShardKey appendOplogNote applyOps authenticate autoCompact autoSplitVector \
    availableQueryOptions balancerCollectionStatus balancerStart balancerStatus balancerStop buildInfo buildinfo \
    bulkWrite checkMetadataConsistency cleanupReshardCollection clearJumboFlag clearLog collStatsAll \
    commitReshardCollection commitTransaction configureCollectionBalancing configureFailPoint connPoolStats \
    connPoolSync connectionStatus convertShardKeyToHashed coordinateCommitTransaction copydb copydbgetnonce copydbsaslstart \
    createRole createUser currentOp cursorInfo dbHash dbStats dbstats delShardFromZone driverOIDTest dropAllRolesFromDatabase \
    dropAllUsersFromDatabase dropConnections dropDatabase dropRole dropUser echo enableSharding endSessions eval explain \
    features filemd5 flushRouterConfig forceerror fsync fsyncUnlock getAuditConfig getClusterParameter getCmdLineOpts \
    getDefaultRWConcern getDiagnosticData getFreeMonitoringStatus getLastError getlasterror getLog getMore getParameter \
    getPrevError getQueryableEncryptionCountInfo getShardMap getShardVersion getnonce grantPrivilegesToRole \
    grantRolesToRole grantRolesToUser handshake hello hostInfo invalidateUserCache isMaster isSelf isdbgrid \
    ismaster killAllSessions killAllSessionsByPattern killOp killSessions listCollections listCommands listDatabases \
    listShards lockInfo logApplicationMessage logRotate logout logical_session_id_refresh makeSnapshot mergeAllChunksOnShard \
    mergeChunks moveChunk moveCollection movePrimary moveRange netstat oidReset ping prepareTransaction profile \
    refineCollectionShardKey refreshLogicalSessionCacheNow refreshSessions removeShard removeShardFromZone \
    renameCollection repairDatabase replSetAbortPrimaryCatchUp replSetFreeze replSetGetConfig replSetGetRBID \
    replSetGetStatus replSetHeartbeat replSetInitiate replSetMaintenance replSetReconfig replSetRequestVotes \
    replSetResizeOplog replSetStepDown replSetStepUp replSetSyncFrom replSetUpdatePosition resetError reshardCollection resync \
    revokePrivilegesFromRole revokeRolesFromRole revokeRolesFromUser rolesInfo rotateCertificates saslContinue saslStart \
    serverStatus setAuditConfig setClusterParameter setDefaultRWConcern setFeatureCompatibilityVersion \
    setFreeMonitoring setIndexCommitQuorum setParameter setQuerySettings setShardVersion shardCollection shardConnPoolStats \
    shardingState shutdown sleep splitChunk splitVector split startRecordingTraffic startSession \
    stopRecordingTraffic top touch transitionFromDedicatedConfigServer transitionToDedicatedConfigServer unshardCollection \
    unsetSharding updateRole updateUser updateZoneKeyRange usersInfo validateDBMetadata waitForFailPoint whatsmyuri \
    whatsmysni";

/// A known command.
#[derive(Clone, Debug)]
pub(super) struct MongodbCommand {
    /// Its name.
    pub(super) name: Arc<str>,
    /// Whether its own value names a collection.
    pub(super) of_collection: bool,
}

static COMMANDS: LazyLock<FxHashMap<&'static [u8], MongodbCommand>> = LazyLock::new(|| {
    let known = |names: &'static str, of_collection| {
        let command = move |name| MongodbCommand { name: Arc::from(name), of_collection };
        names.split_whitespace().map(move |name: &'static str| (name.as_bytes(), command(name)))
    };
    known(OF_COLLECTION, true).chain(known(PLAIN, false)).collect()
});

/// The command of this name.
pub(super) fn command(name: &[u8]) -> Option<&'static MongodbCommand> {
    COMMANDS.get(name)
}

/// Error numbers up to this are consecutive.
const DENSE: usize = 512;
/// The others (MongoDB's `error_codes.yml`).
const SPARSE: [(i64, &str); 22] = [
    (9001, "9001"),
    (10003, "10003"),
    (10057, "10057"),
    (10058, "10058"),
    (10107, "10107"),
    (10334, "10334"),
    (11000, "11000"),
    (11001, "11001"),
    (11600, "11600"),
    (11601, "11601"),
    (11602, "11602"),
    (12582, "12582"),
    (13113, "13113"),
    (13297, "13297"),
    (13388, "13388"),
    (13390, "13390"),
    (13435, "13435"),
    (13436, "13436"),
    (17280, "17280"),
    (20281, "20281"),
    (46841, "46841"),
    (50768, "50768"),
];

static NUMBERS: LazyLock<Vec<String>> = LazyLock::new(|| (0..DENSE).map(|number| number.to_string()).collect());

/// Name of the error with this number.
pub(super) fn error(number: i64) -> &'static str {
    let dense = usize::try_from(number).ok().filter(|number| *number > 0).and_then(|number| NUMBERS.get(number));
    let sparse = || SPARSE.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    dense.map(String::as_str).or_else(sparse).unwrap_or(OTHER)
}
