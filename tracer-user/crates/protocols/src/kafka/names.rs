//! Names of APIs and errors (Kafka's protocol guide). Unlisted ones share one name.

use std::sync::{Arc, LazyLock};

/// Any other API, any other error.
pub(super) const OTHER: &str = "_OTHER";

/// APIs by their keys, and the first version of each that is flexible.
const APIS: &[(&str, i16)] = &[
    ("Produce", 9),
    ("Fetch", 12),
    ("ListOffsets", 6),
    ("Metadata", 9),
    ("LeaderAndIsr", 4),
    ("StopReplica", 2),
    ("UpdateMetadata", 6),
    ("ControlledShutdown", 3),
    ("OffsetCommit", 8),
    ("OffsetFetch", 6),
    ("FindCoordinator", 3),
    ("JoinGroup", 6),
    ("Heartbeat", 4),
    ("LeaveGroup", 4),
    ("SyncGroup", 4),
    ("DescribeGroups", 5),
    ("ListGroups", 3),
    ("SaslHandshake", i16::MAX),
    ("ApiVersions", 3),
    ("CreateTopics", 5),
    ("DeleteTopics", 4),
    ("DeleteRecords", 2),
    ("InitProducerId", 2),
    ("OffsetForLeaderEpoch", 4),
    ("AddPartitionsToTxn", 3),
    ("AddOffsetsToTxn", 3),
    ("EndTxn", 3),
    ("WriteTxnMarkers", 1),
    ("TxnOffsetCommit", 3),
    ("DescribeAcls", 2),
    ("CreateAcls", 2),
    ("DeleteAcls", 2),
    ("DescribeConfigs", 4),
    ("AlterConfigs", 2),
    ("AlterReplicaLogDirs", 2),
    ("DescribeLogDirs", 2),
    ("SaslAuthenticate", 2),
    ("CreatePartitions", 2),
    ("CreateDelegationToken", 2),
    ("RenewDelegationToken", 2),
    ("ExpireDelegationToken", 2),
    ("DescribeDelegationToken", 2),
    ("DeleteGroups", 2),
    ("ElectLeaders", 2),
    ("IncrementalAlterConfigs", 1),
    ("AlterPartitionReassignments", 0),
    ("ListPartitionReassignments", 0),
    ("OffsetDelete", i16::MAX),
    ("DescribeClientQuotas", 1),
    ("AlterClientQuotas", 1),
    ("DescribeUserScramCredentials", 0),
    ("AlterUserScramCredentials", 0),
    ("Vote", 0),
    ("BeginQuorumEpoch", 1),
    ("EndQuorumEpoch", 1),
    ("DescribeQuorum", 0),
    ("AlterPartition", 0),
    ("UpdateFeatures", 0),
    ("Envelope", 0),
    ("FetchSnapshot", 0),
    ("DescribeCluster", 0),
    ("DescribeProducers", 0),
    ("BrokerRegistration", 0),
    ("BrokerHeartbeat", 0),
    ("UnregisterBroker", 0),
    ("DescribeTransactions", 0),
    ("ListTransactions", 0),
    ("AllocateProducerIds", 0),
    ("ConsumerGroupHeartbeat", 0),
    ("ConsumerGroupDescribe", 0),
    ("ControllerRegistration", 0),
    ("GetTelemetrySubscriptions", 0),
    ("PushTelemetry", 0),
    ("AssignReplicasToDirs", 0),
    ("ListConfigResources", 0),
    ("DescribeTopicPartitions", 0),
    ("ShareGroupHeartbeat", 0),
    ("ShareGroupDescribe", 0),
    ("ShareFetch", 0),
    ("ShareAcknowledge", 0),
    ("AddRaftVoter", 0),
    ("RemoveRaftVoter", 0),
    ("UpdateRaftVoter", 0),
    ("InitializeShareGroupState", 0),
    ("ReadShareGroupState", 0),
    ("WriteShareGroupState", 0),
    ("DeleteShareGroupState", 0),
    ("ReadShareGroupStateSummary", 0),
    ("StreamsGroupHeartbeat", 0),
    ("StreamsGroupDescribe", 0),
    ("DescribeShareGroupOffsets", 0),
    ("AlterShareGroupOffsets", 0),
    ("DeleteShareGroupOffsets", 0),
];

/// Errors by number, starting at 1.
const ERRORS: &str = "OFFSET_OUT_OF_RANGE CORRUPT_MESSAGE UNKNOWN_TOPIC_OR_PARTITION INVALID_FETCH_SIZE \
    LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE \
    MESSAGE_TOO_LARGE STALE_CONTROLLER_EPOCH OFFSET_METADATA_TOO_LARGE NETWORK_EXCEPTION \
    COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_TOPIC_EXCEPTION \
    RECORD_LIST_TOO_LARGE NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS \
    ILLEGAL_GENERATION INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID INVALID_SESSION_TIMEOUT \
    REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED \
    CLUSTER_AUTHORIZATION_FAILED INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE \
    UNSUPPORTED_VERSION TOPIC_ALREADY_EXISTS INVALID_PARTITIONS INVALID_REPLICATION_FACTOR \
    INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG NOT_CONTROLLER INVALID_REQUEST UNSUPPORTED_FOR_MESSAGE_FORMAT \
    POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH \
    INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING INVALID_TRANSACTION_TIMEOUT CONCURRENT_TRANSACTIONS \
    TRANSACTION_COORDINATOR_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED \
    OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND SASL_AUTHENTICATION_FAILED \
    UNKNOWN_PRODUCER_ID REASSIGNMENT_IN_PROGRESS DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND \
    DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED \
    DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP \
    GROUP_ID_NOT_FOUND FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND \
    TOPIC_DELETION_DISABLED FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH UNSUPPORTED_COMPRESSION_TYPE \
    STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE \
    GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED \
    NO_REASSIGNMENT_IN_PROGRESS GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT \
    THROTTLING_QUOTA_EXCEEDED PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL \
    INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED PRINCIPAL_DESERIALIZATION_FAILURE \
    SNAPSHOT_NOT_FOUND POSITION_OUT_OF_RANGE UNKNOWN_TOPIC_ID DUPLICATE_BROKER_REGISTRATION \
    BROKER_ID_NOT_REGISTERED INCONSISTENT_TOPIC_ID INCONSISTENT_CLUSTER_ID TRANSACTIONAL_ID_NOT_FOUND \
    FETCH_SESSION_TOPIC_ID_ERROR INELIGIBLE_REPLICA NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE \
    FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH \
    MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID \
    TELEMETRY_TOO_LARGE INVALID_REGISTRATION TRANSACTION_ABORTABLE INVALID_RECORD_STATE \
    SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER \
    VOTER_NOT_FOUND";

/// Shared API names for requests.
static NAMES: LazyLock<Vec<Arc<str>>> = LazyLock::new(|| APIS.iter().map(|(name, _)| Arc::from(*name)).collect());

static NUMBERED: LazyLock<Vec<&'static str>> = LazyLock::new(|| ERRORS.split_whitespace().collect());

fn api(key: i16) -> Option<(&'static str, i16)> {
    APIS.get(usize::try_from(key).ok()?).copied()
}

/// Whether it is a known API.
pub(super) fn is_known(key: i16) -> bool {
    api(key).is_some()
}

/// The name of the API with this key.
pub(super) fn name(key: i16) -> Option<Arc<str>> {
    NAMES.get(usize::try_from(key).ok()?).cloned()
}

/// Whether an API version is flexible; unknown APIs are, like all future ones.
pub(super) fn is_flexible(key: i16, version: i16) -> bool {
    api(key).is_none_or(|(_, from)| version >= from)
}

/// Name of the error with this number; `None` for no error.
pub(super) fn error(number: i16) -> Option<&'static str> {
    let at = match number {
        0 => return None,
        -1 => return Some("UNKNOWN_SERVER_ERROR"),
        number => usize::try_from(number).ok().and_then(|number| number.checked_sub(1)),
    };
    Some(at.and_then(|at| NUMBERED.get(at)).copied().unwrap_or(OTHER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_numbers_are_those_of_the_protocol() {
        for (key, known) in
            [(0, "Produce"), (18, "ApiVersions"), (36, "SaslAuthenticate"), (60, "DescribeCluster"), (78, "ShareFetch")]
        {
            assert_eq!(name(key).as_deref(), Some(known));
        }
        assert_eq!((name(-1), name(93)), (None, None));
        for (number, known) in [
            (3, "UNKNOWN_TOPIC_OR_PARTITION"),
            (27, "REBALANCE_IN_PROGRESS"),
            (58, "SASL_AUTHENTICATION_FAILED"),
            (79, "MEMBER_ID_REQUIRED"),
            (100, "UNKNOWN_TOPIC_ID"),
            (127, "VOTER_NOT_FOUND"),
            (-1, "UNKNOWN_SERVER_ERROR"),
            (128, OTHER),
            (-2, OTHER),
        ] {
            assert_eq!(error(number), Some(known));
        }
        assert_eq!(error(0), None);
    }
}
