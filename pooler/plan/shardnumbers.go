package plan

// The stable numbers of NK013 messages about statements over shards: see docs/errors.md. They never change their meaning.
const (
	numberState           = 117
	numberCopyFrom        = 122
	numberCopyTo          = 123
	numberCurrentOf       = 201
	numberKeyUpdate       = 202
	numberChangeInWith    = 204
	numberMerge           = 205
	numberChangeOfCopies  = 206
	numberChangeElsewhere = 207
	numberInsertKey       = 208
	numberConflict        = 209
	numberVolatileDefault = 210
	numberEngine          = 211
	numberTextOrder       = 212
	numberLocking         = 213
	numberUnknownRelation = 215
	numberDeparse         = 216
	numberInherited       = 217
	numberUpkeep          = 230
	numberUpkeepUpdate    = 231
	numberUpkeepConflict  = 232
	numberUpkeepReturning = 233
	numberUpkeepCopy      = 234
	numberUpkeepTruncate  = 235
	numberUpkeepCascade   = 236
)
