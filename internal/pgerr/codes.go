package pgerr

// SQLSTATEs of Postgres that neki raises itself.
const (
	SuccessfulCompletion             = "00000"
	Warning                          = "01000"
	ConnectionException              = "08000"
	ConnectionDoesNotExist           = "08003"
	ConnectionFailure                = "08006"
	SQLClientUnableToConnect         = "08001"
	TransactionResolutionUnknown     = "08007"
	ProtocolViolation                = "08P01"
	FeatureNotSupported              = "0A000"
	DivisionByZero                   = "22012"
	NumericValueOutOfRange           = "22003"
	NotNullViolation                 = "23502"
	UniqueViolation                  = "23505"
	InvalidParameterValue            = "22023"
	InvalidTextRepresentation        = "22P02"
	InvalidDatetimeFormat            = "22007"
	DatetimeFieldOverflow            = "22008"
	CharacterNotInRepertoire         = "22021"
	InvalidBinaryRepresentation      = "22P03"
	ActiveSQLTransaction             = "25001"
	ReadOnlySQLTransaction           = "25006"
	NoActiveSQLTransaction           = "25P01"
	InFailedSQLTransaction           = "25P02"
	IdleInTransactionSessionTimeout  = "25P03"
	InvalidSQLStatementName          = "26000"
	InvalidAuthorizationSpec         = "28000"
	InvalidPassword                  = "28P01"
	InvalidCursorName                = "34000"
	InvalidCatalogName               = "3D000"
	InvalidSchemaName                = "3F000"
	SerializationFailure             = "40001"
	DeadlockDetected                 = "40P01"
	SyntaxErrorOrAccessRuleViolation = "42000"
	SyntaxError                      = "42601"
	InsufficientPrivilege            = "42501"
	GroupingError                    = "42803"
	DatatypeMismatch                 = "42804"
	WrongObjectType                  = "42809"
	UndefinedColumn                  = "42703"
	UndefinedFunction                = "42883"
	UndefinedTable                   = "42P01"
	UndefinedParameter               = "42P02"
	UndefinedObject                  = "42704"
	DuplicateObject                  = "42710"
	DependentObjectsStillExist       = "2BP01"
	AmbiguousColumn                  = "42702"
	AmbiguousFunction                = "42725"
	DuplicateAlias                   = "42712"
	DuplicatePreparedStatement       = "42P05"
	InvalidColumnReference           = "42P10"
	IndeterminateDatatype            = "42P18"
	CardinalityViolation             = "21000"
	InsufficientResources            = "53000"
	DiskFull                         = "53100"
	OutOfMemory                      = "53200"
	TooManyConnections               = "53300"
	ProgramLimitExceeded             = "54000"
	StatementTooComplex              = "54001"
	ObjectNotInPrerequisiteState     = "55000"
	LockNotAvailable                 = "55P03"
	QueryCanceled                    = "57014"
	AdminShutdown                    = "57P01"
	CannotConnectNow                 = "57P03"
	IdleSessionTimeout               = "57P05"
	ConfigFileError                  = "F0000"
	SystemError                      = "58000"
	InternalError                    = "XX000"
)

// SQLSTATEs of neki's own, class NK. They are part of the product: docs/errors.md lists them and they never change
// their meaning.
const (
	NoEligibleReplica   = "NK001" // no replica of a shard may serve this read
	NoServingPrimary    = "NK002" // a shard had no primary for longer than buffer-window
	FanoutExceeded      = "NK003" // the plan reaches further than __neki.fanout allows
	SecondShardRefused  = "NK004" // __neki.tx_mode = single and the statement needs another shard
	ShardReadOnly       = "NK005" // a shard is read-only because its disk is low
	TableNotPlaced      = "NK006" // the topology does not say where the table lives
	NotImplemented      = "NK013" // can't be done exactly across shards yet; the message has a stable number
	ExplainNeedsGateway = "NK017" // plain EXPLAIN of a plan that needs gateway work
)
