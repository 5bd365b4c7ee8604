CREATE SCHEMA IF NOT EXISTS shardedjob;
COMMENT ON SCHEMA shardedjob IS 'ShardedJob (shardedjob.dev): which rows of other tables are done. One row of table job per consumer group.';

CREATE TABLE IF NOT EXISTS shardedjob.job (
  consumer_group text PRIMARY KEY,
  format         integer NOT NULL DEFAULT 1,
  epoch          bigint NOT NULL,
  slots          integer NOT NULL,
  table_oid      oid,
  table_name     text,
  key_column     text,
  key_type       text,
  in_scope       text,
  storage        text,
  sequence_value bigint,
  horizon        text,
  horizon_at     timestamptz,
  witnesses      text[],
  completed_at   timestamptz,
  processed      bigint NOT NULL DEFAULT 0,
  gone           bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE shardedjob.job IS 'A consumer group, which goes on where it was when its job is deleted and made again. Delete the rows of a group in all three tables, while no worker runs, to start anew.';
COMMENT ON COLUMN shardedjob.job.consumer_group IS 'Name of the group: spec.consumerGroup, or namespace and name of the job';
COMMENT ON COLUMN shardedjob.job.format IS 'Version of what is written here';
COMMENT ON COLUMN shardedjob.job.epoch IS 'Newest partition that any worker entered; workers of older ones are refused';
COMMENT ON COLUMN shardedjob.job.slots IS 'Number of slots of that partition';
COMMENT ON COLUMN shardedjob.job.table_oid IS 'Table that is worked; a table that is dropped and made again has another OID';
COMMENT ON COLUMN shardedjob.job.table_name IS 'Its name when a partition was entered last';
COMMENT ON COLUMN shardedjob.job.key_column IS 'Column (table.key) whose values pick the slot of a row';
COMMENT ON COLUMN shardedjob.job.key_type IS 'Its type';
COMMENT ON COLUMN shardedjob.job.in_scope IS 'SQL condition (table.where) of the rows to be worked; empty: all';
COMMENT ON COLUMN shardedjob.job.storage IS 'Fingerprint of the files of the table, which TRUNCATE, VACUUM FULL and others change';
COMMENT ON COLUMN shardedjob.job.sequence_value IS 'Greatest value seen of the sequence that the key owns; TRUNCATE ... RESTART IDENTITY takes it back';
COMMENT ON COLUMN shardedjob.job.horizon IS 'Greatest key to be worked; NULL with horizon_at set: the table was empty';
COMMENT ON COLUMN shardedjob.job.horizon_at IS 'When the horizon was found, after all who were writing then had ended';
COMMENT ON COLUMN shardedjob.job.witnesses IS 'The greatest keys at that time; of a table that is rewritten some are still there, of one that is truncated none';
COMMENT ON COLUMN shardedjob.job.completed_at IS 'When every row up to the horizon was done';
COMMENT ON COLUMN shardedjob.job.processed IS 'Rows done under partitions that are no longer in table slot';
COMMENT ON COLUMN shardedjob.job.gone IS 'Rows deleted or moved before they could be worked, likewise';

CREATE TABLE IF NOT EXISTS shardedjob.slot (
  consumer_group text NOT NULL,
  epoch          bigint NOT NULL,
  slots          integer NOT NULL,
  slot           integer NOT NULL,
  shard_by       text NOT NULL,
  closed         boolean NOT NULL DEFAULT false,
  cursor         text,
  processed      bigint NOT NULL DEFAULT 0,
  gone           bigint NOT NULL DEFAULT 0,
  updated_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer_group, epoch, slots, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE shardedjob.slot IS 'How far each slot has come. The rows of one epoch and number of slots are one done-layer; those of older partitions stay while they cover rows that the newest does not.';
COMMENT ON COLUMN shardedjob.slot.consumer_group IS 'As in table job';
COMMENT ON COLUMN shardedjob.slot.epoch IS 'Partition under which the cursor moves, or moved';
COMMENT ON COLUMN shardedjob.slot.slots IS 'Its number of slots';
COMMENT ON COLUMN shardedjob.slot.slot IS 'From 0 to slots - 1: the remainder of the key, or of its hash';
COMMENT ON COLUMN shardedjob.slot.shard_by IS 'Value: MOD(key, slots). Hash: MOD(hash(key), slots)';
COMMENT ON COLUMN shardedjob.slot.closed IS 'A newer partition is there, and this cursor never moves again';
COMMENT ON COLUMN shardedjob.slot.cursor IS 'Every row of the slot up to this key is done, apart from those in row_failure; NULL: none';
COMMENT ON COLUMN shardedjob.slot.processed IS 'Rows done under this partition';
COMMENT ON COLUMN shardedjob.slot.gone IS 'Rows deleted or moved before they could be worked';
COMMENT ON COLUMN shardedjob.slot.updated_at IS 'When the last batch was committed';

CREATE TABLE IF NOT EXISTS shardedjob.row_failure (
  consumer_group text NOT NULL,
  key            text NOT NULL,
  attempts       integer NOT NULL,
  reason         text NOT NULL,
  exhausted      boolean NOT NULL DEFAULT false,
  tried_with     text NOT NULL,
  first_at       timestamptz NOT NULL DEFAULT now(),
  last_at        timestamptz NOT NULL DEFAULT now(),
  due_at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer_group, key)
);
COMMENT ON TABLE shardedjob.row_failure IS 'Rows that a cursor has passed and that are not done. Delete one to skip it; set exhausted to false to have it tried again.';
COMMENT ON COLUMN shardedjob.row_failure.consumer_group IS 'As in table job';
COMMENT ON COLUMN shardedjob.row_failure.key IS 'Key of the row, as text';
COMMENT ON COLUMN shardedjob.row_failure.attempts IS 'Attempts that failed; 0: another session had the row locked';
COMMENT ON COLUMN shardedjob.row_failure.reason IS 'What went wrong, without the content of the row';
COMMENT ON COLUMN shardedjob.row_failure.exhausted IS 'Every attempt failed, and no further one is made';
COMMENT ON COLUMN shardedjob.row_failure.tried_with IS 'Fingerprint of the statement and the limit of attempts; when they change, the row is tried again';
COMMENT ON COLUMN shardedjob.row_failure.first_at IS 'When the cursor passed it';
COMMENT ON COLUMN shardedjob.row_failure.last_at IS 'When the last attempt failed';
COMMENT ON COLUMN shardedjob.row_failure.due_at IS 'When the next attempt is due';
